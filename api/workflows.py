"""The runs' workflows, as Temporal shows them: start, ask, steer, and how one ended."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from pydantic import BaseModel
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import (
    QueryRejectCondition,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDReusePolicy,
)
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)
from temporalio.service import RPCError, RPCStatusCode

from api.doing import OpenActivity
from api.problems import RunNotFound
from api.telemetry import interceptors
from ratchet.spec import deadlines, names
from ratchet.spec.faults import Conflict, Fault, FaultKind, Unavailable
from ratchet.spec.home import Home
from ratchet.spec.ids import CONTROL_QUEUE
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.stack import current_stack
from ratchet.spec.state import RunInput, RunPhase, RunStatus

logger = logging.getLogger(__name__)

_ENDED_BADLY = {
    WorkflowExecutionStatus.FAILED,
    WorkflowExecutionStatus.TERMINATED,
    WorkflowExecutionStatus.TIMED_OUT,
    WorkflowExecutionStatus.CANCELED,
}


_VERBS = {
    names.UPDATE_PAUSE: "pause",
    names.UPDATE_RESUME: "resume",
    names.UPDATE_STOP: "stop",
    names.UPDATE_CHECKPOINT: "checkpoint",
    names.UPDATE_EXTEND: "extend",
    names.UPDATE_HYPERPARAMETERS: "set",
}
"""Updates as the person who asks for them calls them."""


class RunWorkflows:
    """Connects when it is first needed, and again when the stack has moved: Temporal may be away for a while.

    Every call raises Unavailable when Temporal does not answer within its deadline.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._client: Client | None = None
        self._target: tuple[str, str] | None = None

    def link(self, run: str) -> str | None:
        """The run's page in the Temporal Web UI."""
        try:
            stack = current_stack(self._home)
        except Unavailable:
            return None
        return (
            f"{stack.temporal_ui}/namespaces/{stack.namespace}/workflows/{run}" if stack.temporal_ui else None
        )

    def ray_dashboard(self) -> str | None:
        """The Ray dashboard's address, where the cluster has one."""
        try:
            return current_stack(self._home).ray_dashboard
        except Unavailable:
            return None

    async def ping(self, within: float = deadlines.LIVE_STATUS) -> None:
        async with _answering(within):
            client = await self._connected()
            await client.service_client.check_health()

    async def start(self, begin: RunInput, *, again: bool = False) -> str:
        """Start a run's workflow and return the id of its execution.

        Raises Conflict if the id belongs to one that runs or, unless `again`, to one that ended well.
        """
        run, spec = begin.state.run, begin.spec
        async with _answering(deadlines.UPDATE):
            client = await self._connected()
            try:
                handle = await client.start_workflow(
                    names.RUN_WORKFLOW,
                    begin,
                    id=run,
                    task_queue=CONTROL_QUEUE,
                    task_timeout=timedelta(seconds=deadlines.WORKFLOW_TASK),
                    # What failed before it was on record may be tried again under the same id.
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE
                    if again
                    else WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
                    search_attributes=_search_attributes(spec),
                    static_summary=_summary(spec),
                )
            except WorkflowAlreadyStartedError:
                raise Conflict(f"a run {run} exists already: choose another id, or leave it out") from None
            except RPCError as error:
                if error.status not in (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.NOT_FOUND):
                    raise
                # Its namespace or search attributes are missing: a control worker makes them as it starts.
                raise Unavailable(f"Temporal is not ready ({error.message}): see `ratchet status`") from None
        assert handle.first_execution_run_id is not None, "start_workflow always says which one it started"
        return handle.first_execution_run_id

    async def terminate(self, run: str, execution: str, reason: str) -> None:
        async with _answering(deadlines.UPDATE):
            handle = (await self._connected()).get_workflow_handle(run, first_execution_run_id=execution)
            await handle.terminate(reason=reason)

    async def status(self, run: str) -> RunStatus | None:
        """What a running workflow says of itself; None if it cannot say so at once."""
        try:
            async with _answering(deadlines.LIVE_STATUS):
                # An ended workflow would answer too, with whatever it believed last.
                return await (await self._handle(run)).query(
                    names.QUERY_STATUS, result_type=RunStatus, reject_condition=QueryRejectCondition.NOT_OPEN
                )
        except (RPCError, Unavailable, WorkflowQueryFailedError, WorkflowQueryRejectedError):
            return None

    async def open_activities(self, run: str) -> list[OpenActivity]:
        """What of a workflow is under way; nothing if Temporal cannot say so at once."""
        try:
            async with _answering(deadlines.LIVE_STATUS):
                client = await self._connected()
                description = await client.get_workflow_handle(run).describe()
                return [
                    await OpenActivity.read(pending, client.data_converter)
                    for pending in description.raw_description.pending_activities
                ]
        except (RPCError, Unavailable):
            return []

    async def update(self, run: str, name: str, request: BaseModel | None = None) -> RunStatus:
        """Steer a run. Raises Conflict if the workflow refuses, RunNotFound if it has ended or is gone."""
        try:
            async with _answering(deadlines.UPDATE):
                handle = await self._handle(run)
                return await handle.execute_update(
                    name, args=[] if request is None else [request], result_type=RunStatus
                )
        except WorkflowUpdateFailedError as error:
            raise Conflict(f"run {run} refused to {_VERBS[name]}: {_deepest(error).message}") from None
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            raise Unavailable(
                f"run {run} did not take up `{_VERBS[name]}`: no control worker answers, `ratchet status`"
            ) from None
        except RPCError as error:
            raise _not_found(run, error) from None

    async def failure(self, run: str) -> Fault | None:
        """Why a workflow failed, was terminated or timed out; None while it runs or if it ended well. Raises
        RunNotFound if Temporal has forgotten it."""
        try:
            async with _answering(deadlines.LIVE_STATUS):
                handle = await self._handle(run)
                if (await handle.describe()).status not in _ENDED_BADLY:
                    return None
                await handle.result()
        except WorkflowFailureError as error:
            return _deepest(error)
        except RPCError as error:
            raise _not_found(run, error) from None
        return None

    async def client(self) -> Client:
        """For what reads whole histories. Its calls are for the caller to bound."""
        return await self._connected()

    async def _handle(self, run: str) -> WorkflowHandle[object, object]:
        return (await self._connected()).get_workflow_handle(run)

    async def _connected(self) -> Client:
        stack = current_stack(self._home)
        target = (stack.temporal_address, stack.namespace)
        if self._client is None or self._target != target:
            self._client = await Client.connect(
                stack.temporal_address,
                namespace=stack.namespace,
                data_converter=pydantic_data_converter,
                interceptors=interceptors(),
                lazy=True,
            )
            self._target = target
        return self._client


@asynccontextmanager
async def _answering(deadline: float) -> AsyncIterator[None]:
    """Bound a conversation with Temporal, and name its absence."""
    try:
        async with asyncio.timeout(deadline):
            yield
    except TimeoutError:
        raise Unavailable(f"Temporal gave no answer for {deadline:g} s: see `ratchet status`") from None
    except RPCError as error:
        if error.status in (
            RPCStatusCode.UNAVAILABLE,
            RPCStatusCode.DEADLINE_EXCEEDED,
            RPCStatusCode.CANCELLED,
        ):
            raise Unavailable(f"Temporal does not answer ({error.message}): see `ratchet status`") from None
        raise
    except RuntimeError as error:  # a lazy client that cannot connect
        logger.warning("cannot connect to Temporal: %s", error)
        raise Unavailable("Temporal cannot be reached: see `ratchet status`") from None


def _not_found(run: str, error: RPCError) -> Exception:
    if error.status is RPCStatusCode.NOT_FOUND:
        return RunNotFound(f"Temporal knows no run {run} that could answer")
    return error


def _deepest(error: BaseException) -> Fault:
    """The innermost cause: Temporal wraps an activity's error twice."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, TerminatedError):
        return Fault(kind=FaultKind.CANCELLED, message=f"its workflow was terminated: {error.message}")
    if isinstance(error, CancelledError):
        return Fault(kind=FaultKind.CANCELLED, message="its workflow was cancelled")
    named = error.type if isinstance(error, ApplicationError) else None
    kind = next((kind for kind in FaultKind if kind.value == named), FaultKind.INTERNAL)
    return Fault(kind=kind, message=str(getattr(error, "message", None) or error))


def _search_attributes(spec: RunSpec) -> TypedSearchAttributes:
    return TypedSearchAttributes(
        [
            SearchAttributePair(
                SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATE), RunPhase.STARTING.value
            ),
            SearchAttributePair(SearchAttributeKey.for_int(names.ATTRIBUTE_STEP), 0),
            SearchAttributePair(SearchAttributeKey.for_int(names.ATTRIBUTE_INCARNATION), 1),
            SearchAttributePair(SearchAttributeKey.for_keyword(names.ATTRIBUTE_RECIPE), spec.name),
        ]
    )


def _summary(spec: RunSpec) -> str:
    """Shown beside the workflow in the Temporal UI; 200 bytes at most."""
    model = spec.policy.model.rpartition("/")[2]
    return f"{model} learns {spec.environment.name}, {spec.grpo.max_num_steps} steps".encode()[:200].decode(
        errors="ignore"
    )
