"""What is running: the supervisor writes it to `state.json`, everybody else reads it."""

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.spec.faults import Unavailable
from ratchet.spec.home import Home


class StackState(BaseModel):
    """Addresses of a running stack."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    supervisor_pid: int
    temporal_address: str
    """host:port of the Temporal frontend."""
    namespace: str
    temporal_ui: str | None = None
    """http://host:port of the Temporal Web UI, if there is one."""
    api_url: str | None = None
    ray_address: str | None = None
    """host:port of the GCS."""

    @classmethod
    def load(cls, home: Home) -> Self:
        """Read it. Raises Unavailable, with the command that starts a stack, if there is none."""
        try:
            return cls.model_validate_json(home.state_file.read_text())
        except FileNotFoundError:
            raise Unavailable(
                f"no Ratchet stack runs from {home.root}: start one with `ratchet up`"
            ) from None
        except ValidationError as error:
            raise Unavailable(
                f"{home.state_file} is damaged ({error.error_count()} errors): delete it, then `ratchet up`"
            ) from None
