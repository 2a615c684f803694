"""The supervisor itself: starts the parts in their order, keeps them, takes them down in reverse."""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Never

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from ratchet.spec import deadlines, names
from ratchet.spec.admission import MAX_SESSIONS_VARIABLE, Limit
from ratchet.spec.faults import Unavailable
from ratchet.spec.home import Home
from ratchet.spec.ids import CLUSTER_QUEUE, CONTROL_QUEUE
from ratchet.telemetry import targets
from workers.fenced_tasks import FencedTasks
from workers.orphans import here
from workers.supervisor import guard, temporal_server
from workers.supervisor.abandoned import close_abandoned
from workers.supervisor.children import Child, Plan
from workers.supervisor.doors import door, is_url
from workers.supervisor.environment import stack_environment
from workers.supervisor.files import write_atomically
from workers.supervisor.leadership import Leadership
from workers.supervisor.net import http_ok
from workers.supervisor.ports import Ports
from workers.supervisor.ray_existing import ExistingRay
from workers.supervisor.ray_head import RayHead
from workers.supervisor.reaper import Reaper
from workers.supervisor.rotation import keep_small
from workers.supervisor.sessions import Sessions
from workers.supervisor.state import PartStatus, SupervisorState
from workers.supervisor.statuses import child_status, head_statuses
from workers.supervisor.stop import sweep
from workers.supervisor.taking_over import take_back, take_over
from workers.temporal import connect

logger = logging.getLogger(__name__)

WORKER_PAUSE = 1.0
"""Before polling the cluster queue again after the worker failed."""


class Part(StrEnum):
    TEMPORAL = "temporal"
    RAY = "ray"
    CONTROL = "control"
    API = "api"
    SINKS = "sinks"


@dataclass(frozen=True)
class Options:
    """What to run, and where."""

    parts: frozenset[Part] = frozenset(Part)
    temporal: str | None = None
    """An existing Temporal server (host:port) instead of one of our own."""
    ray: str | None = None
    """An existing Ray cluster: HOST:PORT of its GCS if this host is one of its, else its dashboard's URL."""
    ports: dict[str, int] = field(default_factory=dict)
    """Ports asked for, by the names of Ports."""
    standby: float | None = None
    """Be one of several supervisors of which one is active; it is replaced when it was silent so long (s)."""
    limit: Limit | None = None
    """Of sessions at a time, remembered from then on; None: as it was."""

    def needed_ports(self) -> set[str]:
        needed: set[str] = set()
        if Part.TEMPORAL in self.parts and not self.temporal:
            needed |= {"temporal", "temporal_ui", "temporal_http", "temporal_metrics"}
        if Part.RAY in self.parts and not self.ray:
            needed.add("ray")
        if Part.API in self.parts:
            needed.add("api")
        return needed


class Supervisor:
    """One stack of one RATCHET_HOME, for the holder of its SupervisorLock. `start`, wait for what is to end
    it, `stop`: in one event loop, once."""

    def __init__(self, home: Home, options: Options, leadership: Leadership | None = None) -> None:
        """`leadership`: won; what runs is fenced by it."""
        self.home = home
        self.options = options
        self._leadership = leadership
        self._fence = leadership.fence if leadership else None
        self._reaper = Reaper(self._fence.check) if self._fence else Reaper()
        self._started_at = time.time()
        self._limit = options.limit or Limit.of(home)
        self._environment = stack_environment(home, embedded_ray=options.ray is None)
        if self._fence:
            self._environment |= self._fence.environment()
        self._guard: Child | None = None
        self._environment[MAX_SESSIONS_VARIABLE] = str(self._limit)
        self._children: dict[Part, Child] = {}
        self._head: RayHead | ExistingRay | None = None
        self._sessions: Sessions | None = None
        self._client: Client | None = None
        self._background: list[asyncio.Task[None] | asyncio.Task[Never]] = []
        self._control_before: tuple[int, set[str]] = (0, set())
        self._address = ""
        self._ready = False
        self._stopping = False
        self._plans = {
            Part.CONTROL: self._control_plan,
            Part.API: self._api_plan,
            Part.SINKS: self._sinks_plan,
        }
        self._resources = contextlib.ExitStack()

    # --- up

    async def start(self) -> SupervisorState:
        """Everything is up when this returns. Raises Conflict, Unavailable or SpecError; then call `stop`."""
        options = self.options
        self._reaper.install()
        self.home.logs.mkdir(parents=True, exist_ok=True)
        if options.limit:
            write_atomically(self.home.max_sessions_file, str(options.limit))
        leftovers = await sweep(self.home)
        if leftovers.processes:
            logger.warning("ended %d processes that an earlier stack had left behind", leftovers.processes)
        self._ports = Ports.choose(self.home, options.ports, options.needed_ports())
        self._address = options.temporal or f"127.0.0.1:{self._ports.temporal}"
        if "RAY_ADDRESS" in os.environ:
            logger.info("RAY_ADDRESS=%s is ignored: say --ray to use that cluster", os.environ["RAY_ADDRESS"])
        self._background.append(asyncio.create_task(keep_small(self.home.logs)))
        await self._start_guard()
        await _together(self._start_ray(), self._start_temporal())
        if self._client and self._leadership and self._leadership.took_over:
            await take_over(self._client, self._leadership.took_over)
            self._background.append(asyncio.create_task(take_back(self._client)))
        if self._head and self._client:
            self._sessions = Sessions(
                self.home,
                self._environment,
                self._head,
                self._reaper,
                self.publish,
                took_over=self._leadership.took_over if self._leadership else None,
            )
            self._background += [
                asyncio.create_task(self._poll_cluster_queue(self._client, self._sessions)),
                asyncio.create_task(close_abandoned(self._sessions, self._client)),
            ]
        await _together(
            *(self._start_child(part, plan()) for part, plan in self._plans.items() if part in options.parts)
        )
        self._ready = True
        self.publish()
        return self._state()

    async def _start_guard(self) -> None:
        """Before anything that it is to end."""
        if self._fence:
            plan = guard.plan(self.home, self._environment)
            self._guard = Child(plan, self._reaper, self.publish)
            self._guard.start()
            await self._guard.ready(plan.ready_within)

    async def _start_ray(self) -> None:
        if Part.RAY not in self.options.parts:
            return
        if self.options.ray:
            existing = ExistingRay(
                door(self.options.ray, self.home, self._reaper, self._environment),
                changed=self.publish,
                lost=self._head_lost,
                back=self._head_back,
            )
            await existing.start()
            self._head = existing
            logger.info("using the Ray cluster at %s", existing.name)
            return
        head = RayHead(
            self.home,
            self._ports.ray,
            self._reaper,
            changed=self.publish,
            lost=self._head_lost,
            back=self._head_back,
        )
        self._head = head
        await head.start()

    async def _start_temporal(self) -> None:
        if Part.TEMPORAL not in self.options.parts:
            return
        own = self.options.temporal is None
        if own:
            lock = self._resources.enter_context(temporal_server.lock_database(self.home))
            plan = temporal_server.plan(self.home, self._ports, lock, self._temporal_answers)
            await self._start_child(Part.TEMPORAL, plan)
            targets.announce(self.home, "temporal", f"127.0.0.1:{self._ports.temporal_metrics}")
        self._client = await self._connect(deadlines.SERVER_READY if own else deadlines.EXISTING_TEMPORAL)
        await temporal_server.ensure_namespace(self._client, own_server=own)
        self.publish()

    async def _connect(self, within: float) -> Client:
        try:
            async with asyncio.timeout(
                within + 1.0
            ):  # an address that swallows packets holds up a single attempt
                return await connect(self._address, identity=here(CLUSTER_QUEUE), deadline=within)
        except TimeoutError:
            raise Unavailable(
                f"nobody answers as Temporal at {self._address} within {within:.0f} s"
            ) from None

    def _head_lost(self) -> None:
        if self._sessions:
            self._sessions.head_lost()

    def _head_back(self) -> None:
        if self._sessions:
            self._sessions.head_back()

    async def _start_child(self, part: Part, plan: Plan) -> None:
        child = self._children[part] = Child(plan, self._reaper, self.publish)
        child.start()
        await child.ready(plan.ready_within)

    async def _temporal_answers(self) -> bool:
        return self._client is None or await temporal_server.answers(self._client)

    def _control_plan(self) -> Plan:
        return Plan(
            name="control-worker",
            argv=[sys.executable, "-m", "workers.control_worker"],
            environment=self._environment,
            log=self.home.logs / "control-worker.log",
            is_ready=self._control_polls,
            ready_within=deadlines.WORKER_READY,
            alive_file=self.home.root / "alive" / "control-worker",
        )

    async def _control_polls(self, pid: int, _began: float) -> bool:
        """Whether somebody polls the control queue who did not when this worker was started."""
        assert self._client
        request = DescribeTaskQueueRequest(
            namespace=names.NAMESPACE,
            task_queue=TaskQueue(name=CONTROL_QUEUE),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        try:
            answer = await self._client.workflow_service.describe_task_queue(
                request, timeout=timedelta(seconds=2)
            )
        except RPCError:
            return False
        pollers = {poller.identity for poller in answer.pollers}
        if self._control_before[0] != pid:
            self._control_before = (pid, pollers)
        return bool(pollers - self._control_before[1])

    def _api_plan(self) -> Plan:
        async def answers() -> bool:
            return await http_ok(f"http://127.0.0.1:{self._ports.api}/healthz")

        async def is_ready(_pid: int, _began: float) -> bool:
            return await answers()

        return Plan(
            name="api",
            argv=[sys.executable, "-m", "api", "--host", "127.0.0.1", "--port", str(self._ports.api)],
            environment=self._environment,
            log=self.home.logs / "api.log",
            is_ready=is_ready,
            ready_within=deadlines.API_READY,
            answers=answers,
        )

    def _sinks_plan(self) -> Plan:
        alive = self.home.root / "alive" / "sinks"

        async def is_ready(_pid: int, _began: float) -> bool:
            return alive.exists()

        return Plan(
            name="sinks",
            argv=[sys.executable, "-m", "workers.sinks"],
            environment=self._environment,
            log=self.home.logs / "sinks.log",
            is_ready=is_ready,
            ready_within=deadlines.WORKER_READY,
            alive_file=alive,
        )

    async def _poll_cluster_queue(self, client: Client, sessions: Sessions) -> Never:
        while True:
            try:
                await Worker(
                    client,
                    task_queue=CLUSTER_QUEUE,
                    activities=sessions.activities(),
                    interceptors=[FencedTasks(self._fence)] if self._fence else [],
                ).run()
            except Exception:  # whatever it was, sessions need somebody who answers
                logger.exception("the worker of %s failed: starting another", CLUSTER_QUEUE)
            await asyncio.sleep(WORKER_PAUSE)

    # --- down

    async def stop(self, grace: float = deadlines.STOP_GRACE) -> None:
        """Take down whatever is up, in reverse order, and leave nothing. Also after a `start` that failed."""
        self._stopping = True
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=grace)
        if self._sessions:
            await self._sessions.stop(grace)
        await asyncio.gather(
            *(self._children[part].stop(grace) for part in self._plans if part in self._children)
        )
        if self._head:
            await self._head.stop(grace)
        if Part.TEMPORAL in self._children:
            await self._children[Part.TEMPORAL].stop(grace)
        self._resources.close()
        if self._guard:
            await self._guard.stop(grace)
        await sweep(self.home)
        logger.info("everything is down")

    # --- what is known of it

    def publish(self) -> None:
        """Write state.json. What is kept running must not end because the disk is full."""
        if self._stopping or not self._address:
            return
        try:
            write_atomically(self.home.state_file, self._state().model_dump_json(indent=1))
        except OSError as error:
            logger.error("%s cannot be written, and is old now: %s", self.home.state_file, error)

    def _state(self) -> SupervisorState:
        """The addresses, and how every part is."""
        ports, parts = self._ports, self.options.parts
        own_temporal = Part.TEMPORAL in parts and not self.options.temporal
        return SupervisorState(
            supervisor_pid=os.getpid(),
            temporal_address=self._address,
            namespace=names.NAMESPACE,
            temporal_ui=f"http://127.0.0.1:{ports.temporal_ui}" if own_temporal else None,
            api_url=f"http://127.0.0.1:{ports.api}" if Part.API in parts else None,
            ray_address=self._head.address if self._head else None,
            ray_dashboard=self.options.ray if self.options.ray and is_url(self.options.ray) else None,
            started_at=self._started_at,
            ready=self._ready,
            max_sessions=self._limit.max_sessions,
            parts=tuple(self._part_statuses()),
            lease=self._leadership.view() if self._leadership else None,
        )

    def _part_statuses(self) -> Iterator[PartStatus]:
        addresses = {Part.TEMPORAL: self._address, Part.API: f"http://127.0.0.1:{self._ports.api}"}
        for part, child in self._children.items():
            yield child_status(child, addresses.get(part))
        if self.options.temporal and Part.TEMPORAL in self.options.parts:
            yield PartStatus(name="temporal", state="existing", address=self._address)
        if self._head:
            yield from head_statuses(self._head)
        if self._guard:
            yield child_status(self._guard, None)
        if self._sessions:
            for child in self._sessions.children.values():
                yield child_status(child, None)


async def _together(*steps: Coroutine[Any, Any, None]) -> None:
    """Run them at once. If one fails the others are cancelled, and its error is raised, alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(step)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
