"""A Ray cluster that somebody else runs on this host, and asking any cluster who it is."""

import sys
import tempfile

from pydantic import ValidationError

from ratchet.spec import deadlines
from ratchet.spec.faults import SpecError, Unavailable
from workers.supervisor.net import accepts, host_and_port
from workers.supervisor.ray_probe import RayIdentity
from workers.supervisor.reaper import Reaper


async def identify(reaper: Reaper, address: str, environment: dict[str, str]) -> RayIdentity | None:
    """Who answers as Ray at `address`; None if nobody does in time."""
    argv = [sys.executable, "-m", "workers.supervisor.ray_probe", address]
    with tempfile.TemporaryFile() as output:
        try:
            code = await reaper.run(
                argv, environment=environment, output=output, within=deadlines.RAY_IDENTITY
            )
        except Unavailable:
            return None
        output.seek(0)
        lines = output.read().splitlines()
    try:
        return RayIdentity.model_validate_json(lines[-1]) if code == 0 and lines else None
    except ValidationError:
        return None


class ExistingRay:
    """Used, never started, stopped or replaced."""

    def __init__(self, address: str, reaper: Reaper, environment: dict[str, str]) -> None:
        self.address = address
        self._reaper = reaper
        self._environment = environment

    async def check(self) -> None:
        """Raises Unavailable if nobody answers, SpecError if its versions are not ours."""
        host, port = host_and_port(self.address, "--ray")
        identity = None
        if await accepts(host, port):  # Ray's client would wait for ever
            identity = await identify(self._reaper, self.address, self._environment)
        if identity is None:
            raise Unavailable(
                f"nobody answers as Ray at {self.address}: check --ray, and, if that cluster wants a token, "
                "RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH"
            )
        ours, theirs = (
            (identity.our_ray, identity.our_python),
            (identity.cluster_ray, identity.cluster_python),
        )
        if ours != theirs:
            raise SpecError(
                f"the cluster at {self.address} runs Ray {theirs[0]} on Python {theirs[1]}, and here are Ray "
                f"{ours[0]} and Python {ours[1]}: both must be the same; without --ray, Ratchet starts a "
                "cluster of its own"
            )

    async def answers(self) -> bool:
        host, port = host_and_port(self.address, "--ray")
        if not await accepts(host, port):
            return False
        identity = await identify(self._reaper, self.address, self._environment)
        return identity is not None and identity.nodes > 0

    async def ensure(self) -> None:
        """Raises Unavailable if it does not answer: to replace it is its owner's business."""
        if not await self.answers():
            raise Unavailable(f"the Ray cluster at {self.address} does not answer")
