"""Promise 1 and 3: kill a control process, and the run goes on, exactly, with nobody called."""

import pytest

from tests.e2e.conftest import MOMENTS, QUICK, Stack, until

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(300)]

OPERATION = {"mid-rollout": "rollout", "mid-train": "train"}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", ["control-worker", "session-worker", "session-host"])
def test_a_killed_control_process_costs_nothing(
    stack: Stack, undisturbed: str, victim: str, moment: str
) -> None:
    run = f"{victim}-{moment}"
    failpoint, action = MOMENTS[moment]
    stack.failpoints.arm(failpoint, action)
    stack.launch(run, *QUICK)
    stack.failpoints.wait_hit(failpoint)

    killed = stack.kill(victim, run)
    until(f"another {victim}", lambda: stack.replaced(victim, run, killed))
    if victim != "control-worker":
        # The operation is still in flight: whoever comes next joins it. A control worker's death leaves
        # the attempt on the session worker alone, so nothing has to be joined.
        until("the join", lambda: stack.submits_in_flight(run) >= 2)
    stack.failpoints.release(failpoint)

    shown, expected = stack.ended(run), stack.show(undisturbed)
    assert shown["phase"] == "completed"
    assert shown["last_checkpoint"]["digest"] == expected["last_checkpoint"]["digest"]

    steps, expected_steps = stack.store.steps(run), stack.store.steps(undisturbed)
    assert [(row.optimizer_steps, row.samples_generated) for row in steps] == [
        (row.optimizer_steps, row.samples_generated) for row in expected_steps
    ]
    (disturbed,) = [row for row in steps if row.step == 2]
    operation = OPERATION[moment]
    assert getattr(disturbed, f"{operation}_starts") == 1
    assert getattr(disturbed, f"{operation}_submits") >= (1 if victim == "control-worker" else 2)
