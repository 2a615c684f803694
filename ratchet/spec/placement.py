"""Where a run's trainer and generator keep what they compute with."""

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ratchet.spec.asynchronous import AsynchronousSpec


class PlacementSpec(BaseModel):
    """Devices of the engines."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Literal["split", "colocated"] = "split"
    """`split`: trainer and generator have devices of their own. `colocated`: they take turns on the same
    ones, and keep their state in the host's memory meanwhile."""
    gpus: Literal[0, 1] = 0
    """GPUs of each engine, reserved in Ray; `colocated`: of both together. 0: they compute on the host."""

    @property
    def gpus_of_an_engine(self) -> float:
        """What an actor reserves."""
        return self.gpus / 2 if self.kind == "colocated" else float(self.gpus)

    @property
    def gpus_of_a_session(self) -> int:
        return self.gpus if self.kind == "colocated" else 2 * self.gpus

    def contradictions(self, asynchronous: AsynchronousSpec | None) -> Iterator[str]:
        """One line for each pair of keys that cannot both hold, with the fix."""
        if (
            self.kind == "colocated"
            and asynchronous
            and (asynchronous.max_staleness or not asynchronous.exact)
        ):
            yield (
                "placement.kind is colocated, where trainer and generator take turns, but the section "
                "asynchronous has them work at the same time: leave it out, or set placement.kind to split"
            )
