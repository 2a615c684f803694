"""What every test stands on: none sees this machine's own Ratchet, Ray cluster or model hub."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ratchet.spec.home import Home

if TYPE_CHECKING:
    from workers.testing.postgres import PostgresServer

pytest_plugins = ["pytester"]

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
os.environ.pop("RAY_ADDRESS", None)
os.environ.pop("RATCHET_STORE", None)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared base models, the tiny one among them: building it takes half a minute, so it is built once."""
    from ratchet.models.prepare import prepare_model

    home = Home(tmp_path_factory.mktemp("prepared"))
    prepare_model("tiny", home)
    return home.models


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    """A PostgreSQL server of this test session's own, on a Unix socket."""
    from workers.testing.postgres import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
