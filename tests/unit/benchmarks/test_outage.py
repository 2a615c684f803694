"""A run whose Postgres is killed and comes back: it waits, and nothing is lost or doubled."""

import pytest
from temporalio.testing import WorkflowEnvironment

from benchmarks.outage import measure
from workers.testing.postgres import PostgresServer

AWAY_S = 2.0


@pytest.mark.integration
async def test_a_killed_postgres_costs_a_run_nothing(ratchet_temporal: WorkflowEnvironment, tmp_path) -> None:
    with PostgresServer() as server:
        answer = await measure(ratchet_temporal.client, server, tmp_path, AWAY_S)
    assert (answer["missing"], answer["doubled"], answer["again"]) == (0, 0, 0)
