"""Whatever the bytes travel through, the run ends in the same ones."""

import pytest

from tests.e2e.conftest import QUICK, Stack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.parametrize("backend", ["simple", "mooncake_cpu", "ray"])
def test_a_run_ends_in_the_same_bits_on_every_data_plane(
    stack: Stack, undisturbed: str, backend: str
) -> None:
    run = f"over-{backend.replace('_', '-')}"
    stack.launch(run, *QUICK, f"data_plane.backend={backend}")
    shown, expected = stack.ended(run), stack.show(undisturbed)
    assert shown["phase"] == "completed"
    assert shown["last_checkpoint"]["digest"] == expected["last_checkpoint"]["digest"]
