"""The values of secrets, looked up when they are needed and kept nowhere."""

import os
from pathlib import Path

from ratchet.spec.faults import SpecError
from ratchet.spec.secrets import SecretRef


def value_of(secret: SecretRef, key: str) -> str:
    """What it stands for. Raises SpecError, naming the key that asked for it, if there is nothing there."""
    if secret.env is not None:
        value = os.environ.get(secret.env, "")
    else:
        try:
            value = Path(str(secret.file)).expanduser().read_text().partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError, RuntimeError) as error:
            raise SpecError(
                f"{key}: {secret} cannot be read ({type(error).__name__}): put the secret there"
            ) from None
    if not value:
        raise SpecError(f"{key}: {secret} is empty, or not there: put the secret there, where the stack runs")
    return value
