"""What is running: the supervisor writes it to `state.json`, everybody else reads it."""

import os
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.spec import names
from ratchet.spec.faults import Unavailable
from ratchet.spec.home import Home

TEMPORAL_VARIABLE = "RATCHET_TEMPORAL"
"""host:port of a Temporal server, for an API or a control worker that no supervisor has started."""
TEMPORAL_UI_VARIABLE = "RATCHET_TEMPORAL_UI"
"""http://host:port of its web pages, as people reach them."""


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
    standing_by_for: str | None = None
    """The active supervisor, if this one only waits to take its place."""
    ray_address: str | None = None
    """host:port of the GCS."""
    ray_dashboard: str | None = None
    """http://host:port of the Ray dashboard, where sessions are its jobs; our own head has none."""

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


def current_stack(home: Home) -> StackState:
    """What state.json says, but for a Temporal server that the environment names. Raises Unavailable if
    neither says where Temporal is."""
    address = os.environ.get(TEMPORAL_VARIABLE)
    if not address:
        return StackState.load(home)
    named = {
        "temporal_address": address,
        "temporal_ui": os.environ.get(TEMPORAL_UI_VARIABLE),
        "namespace": names.NAMESPACE,
    }
    try:
        return StackState.load(home).model_copy(update=named)
    except Unavailable:
        return StackState.model_validate({"supervisor_pid": 0, **named})
