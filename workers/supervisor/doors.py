"""The two ways into an existing Ray cluster: `--ray HOST:PORT` on its own host, `--ray http://…` for jobs."""

import functools
import re
import sys
import tempfile
from collections.abc import Sequence

from pydantic import ValidationError

from ratchet.spec import deadlines
from ratchet.spec.faults import RatchetError, SpecError, Unavailable
from ratchet.spec.home import Home
from workers.supervisor.jobs import JobsClient
from workers.supervisor.net import accepts, host_and_port
from workers.supervisor.ray_existing import Door
from workers.supervisor.ray_probe import RayIdentity
from workers.supervisor.reaper import Reaper


def door(ray: str, home: Home, reaper: Reaper, environment: dict[str, str]) -> Door:
    """The one that `--ray` asks for. Raises SpecError if it is neither HOST:PORT nor a URL."""
    kind = JobsDoor if is_url(ray) else HostDoor
    return kind(ray, home, reaper, environment)


def check_ray(ray: str) -> None:
    """Raises SpecError if `--ray` is neither HOST:PORT nor a URL."""
    _server_of(ray) if is_url(ray) else host_and_port(ray, "--ray")


def here(_name: str, module: str, *words: str) -> Sequence[str]:
    """The command for a program that runs on this host."""
    return [sys.executable, "-m", module, *words]


async def identify(reaper: Reaper, address: str, environment: dict[str, str]) -> RayIdentity | None:
    """Who answers as Ray at `address`, asked from this host; None if nobody does in time."""
    argv = here("", "workers.supervisor.ray_probe", address)
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


class HostDoor:
    """This host is one of the cluster's: its drivers run here, as for a head of our own."""

    def __init__(self, address: str, _home: Home, reaper: Reaper, environment: dict[str, str]) -> None:
        self.name = address
        self.is_here, self.command = True, here
        self._host, self._port = host_and_port(address, "--ray")
        self._reaper, self._environment = reaper, environment

    async def listens(self) -> bool:
        return await accepts(self._host, self._port)

    async def session(self) -> str | None:
        identity = await self._identity()
        return identity.session if identity and identity.nodes else None

    async def identify(self) -> RayIdentity:
        identity = await self._identity()
        if identity is None:
            raise Unavailable(
                f"nobody answers as Ray at {self.name}: check --ray, and, if that cluster wants a token, "
                "RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH"
            )
        ours, theirs = (
            (identity.our_ray, identity.our_python),
            (identity.cluster_ray, identity.cluster_python),
        )
        if ours != theirs:
            raise SpecError(
                f"the cluster at {self.name} runs Ray {theirs[0]} on Python {theirs[1]}, and here are Ray "
                f"{ours[0]} and Python {ours[1]}: both must be the same; without --ray, Ratchet starts a "
                "cluster of its own"
            )
        return identity

    async def _identity(self) -> RayIdentity | None:
        if not await self.listens():  # Ray's client would wait for ever
            return None
        return await identify(self._reaper, self.name, self._environment)


class JobsDoor:
    """Any cluster whose dashboard can be reached: everything that is a Ray driver runs there, as a job."""

    def __init__(self, url: str, home: Home, reaper: Reaper, environment: dict[str, str]) -> None:
        self.name = url
        self.is_here, self.command = False, functools.partial(here, "", "workers.supervisor.job", url)
        self._host, self._port = _server_of(url)
        self._home, self._reaper, self._environment = home, reaper, environment

    async def listens(self) -> bool:
        return await accepts(self._host, self._port)

    async def session(self) -> str | None:
        try:
            async with JobsClient(self.name) as jobs:
                return await jobs.session()
        except RatchetError:
            return None

    async def identify(self) -> RayIdentity:
        """Asked by a job, which also shows that our code and RATCHET_HOME are there."""
        async with JobsClient(self.name) as jobs:
            await jobs.session()  # says what is wrong, if the dashboard itself does
        report, log = self._home.root / "cluster.json", self._home.logs / "probe.log"
        report.unlink(missing_ok=True)
        argv = self.command("probe", "workers.supervisor.ray_probe", "$RAY_ADDRESS", str(report))
        with log.open("ab") as output:
            code = await self._reaper.run(
                argv, environment=self._environment, output=output, within=deadlines.WORKER_READY
            )
        if code != 0 or not report.exists():
            raise SpecError(
                f"a job on {self.name} could not run Ratchet and report to {report}: the cluster needs this "
                f"version of Ratchet, and RATCHET_HOME at the same path, shared with this host (log: {log})"
            )
        return RayIdentity.model_validate_json(report.read_text())


def is_url(ray: str) -> bool:
    """Whether it is a cluster's dashboard, which serves the Jobs API."""
    return "://" in ray


def _server_of(url: str) -> tuple[str, int]:
    match = re.fullmatch(r"(https?)://([^/:]+)(?::(\d+))?(?:/.*)?", url)
    if match is None:
        raise SpecError(f"--ray {url!r} is not a URL like http://ray-head:8265")
    scheme, host, port = match.groups()
    return host, int(port or (443 if scheme == "https" else 80))
