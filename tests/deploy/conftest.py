"""This machine instead of the containers of docker-compose.yml."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.deploy.compose import Here
from workers.testing.postgres import PostgresServer


@pytest.fixture
def api_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def here(
    postgres: PostgresServer, ratchet_temporal: WorkflowEnvironment, tmp_path: Path, api_url: str
) -> Iterator[Here]:
    """This machine instead of the containers' network and volumes."""
    secret = tmp_path / "postgres_password"
    secret.write_text("not asked for on this server's socket\n")
    database = postgres.new_database()
    found = Here(
        {
            "@postgres:5432/ratchet": f"@/{database}",
            "?password_file=/run/secrets/postgres_password": f"?host={postgres.host}&password_file={secret}",
            "temporal:7233": ratchet_temporal.client.service_client.config.target_host,
            "/var/lib/ratchet": str(tmp_path / "home"),
            "/tmp/alive": str(tmp_path / "alive-{service}"),
            "8650": api_url.rpartition(":")[2],
        },
        tmp_path,
    )
    yield found
    assert set(found.instead) <= found.used, "the file names something else now"
