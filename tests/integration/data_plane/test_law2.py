"""Law 2 against every backend that has processes of its own; tests/unit/data_plane has many more seeds."""

import pytest

from tests.unit.data_plane.conftest import Rig
from tests.unit.data_plane.test_law2 import audit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


async def test_over_random_deaths_every_prompt_counts_once(rig: Rig) -> None:
    await audit(rig, range(10))
