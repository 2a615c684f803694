"""What dies inside the cluster is replaced in place, and the run does not have to go back."""

import pytest

from tests.e2e.conftest import MOMENTS, QUICK, Stack, until

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(300)]


# A pair for each; benchmarks.chaos has all of them at all moments.
@pytest.mark.parametrize(
    ("victim", "moment"),
    [
        ("generator", "mid-rollout"),
        ("conductor", "mid-train"),
        ("data-plane", "mid-rollout"),
        ("tq-storage-0", "mid-rollout"),
        ("tq-controller", "mid-train"),
    ],
)
def test_a_lost_actor_is_replaced_in_place(stack: Stack, undisturbed: str, victim: str, moment: str) -> None:
    run = f"{victim}-{moment}"
    failpoint, action = MOMENTS[moment]
    stack.failpoints.arm(failpoint, action)
    # What lives on after its part is dead would be another data plane than the one this is about.
    data_plane = "simple" if victim.startswith("tq-") else "memory"
    stack.launch(run, *QUICK, f"data_plane.backend={data_plane}")
    stack.failpoints.wait_hit(failpoint)

    killed = stack.kill(victim, run)
    stack.failpoints.release(failpoint)
    # A run that is nearly over may need no other.
    until(
        f"another {victim}",
        lambda: stack.replaced(victim, run, killed) or stack.phase(run) == "completed",
    )

    shown, expected = stack.ended(run), stack.show(undisturbed)
    assert shown["phase"] == "completed"
    assert shown["incarnation"] == 1
    assert shown["last_checkpoint"]["digest"] == expected["last_checkpoint"]["digest"]
    steps = stack.store.steps(run)
    assert [row.optimizer_steps for row in steps] == [1, 2, 3]
    assert [row.train_starts for row in steps] == [1, 1, 1]
