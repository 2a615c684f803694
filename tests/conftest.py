"""What every test stands on: none sees this machine's own Ratchet, Ray cluster or model hub."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ratchet.spec.home import Home

if TYPE_CHECKING:
    from workers.testing.postgres import PostgresServer

pytest_plugins = ["pytester"]

E2E = "tests/e2e"

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
os.environ.pop("RAY_ADDRESS", None)
os.environ.pop("RATCHET_STORE", None)
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the same bits on every machine are promised for CPUs only


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How `make test` shares the tests out: by file, but those of one whole stack stay together."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return E2E if file.startswith(f"{E2E}/") else file

    return ByFile(config, log)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared base models, the tiny one among them: building it takes half a minute, so it is built once,
    by whichever test process comes first."""
    from ratchet.models.prepare import prepare_model

    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    home = Home(shared / "prepared")
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
