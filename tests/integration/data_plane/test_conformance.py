"""The suite of tests/unit/data_plane, unchanged, against every backend that has processes of its own."""

import pytest

from tests.unit.data_plane.test_conformance import *  # noqa: F403

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
