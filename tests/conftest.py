"""What every test stands on: none sees this machine's own Ratchet, Ray cluster or model hub."""

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
os.environ.pop("RAY_ADDRESS", None)


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
