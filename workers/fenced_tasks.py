"""Tasks of Temporal are begun only while the stack may act.

A frozen worker keeps its polls open: a task may be handed to it while somebody else takes its place, and
waits in it until it thaws. That task is not of its time any more.
"""

import logging
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from workers.fence import Fence

logger = logging.getLogger(__name__)


class FencedTasks(Interceptor):
    """For the `interceptors` of a worker that holds no more than its stack does."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Checked(next, self._fence)


class _Checked(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, fence: Fence) -> None:
        super().__init__(next)
        self._fence = fence

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if not self._fence.remaining():
            info = activity.info()
            logger.error(
                "%s of %s comes after the end of this stack's time", info.activity_type, info.workflow_id
            )
            activity.raise_complete_async()  # without a word: its timeout gives it to somebody else
        return await super().execute_activity(input)
