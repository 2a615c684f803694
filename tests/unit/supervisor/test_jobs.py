"""What is submitted to a cluster, and what is said when it cannot be."""

import json
import shlex
from pathlib import Path

import pytest

from ratchet.spec.faults import SpecError, Unavailable
from ratchet.spec.home import Home
from workers.supervisor.doors import check_ray
from workers.supervisor.job import RUNTIME_ENV_VARIABLE, entrypoint, runtime_env
from workers.supervisor.jobs import JobsClient


def test_the_command_expands_only_what_the_cluster_knows_better() -> None:
    command = entrypoint("probe", "workers.reap", ["$RAY_ADDRESS", "$HOME", "a b"])
    assert command.startswith("exec \"${RATCHET_PYTHON:-python}\" -m workers.reap $RAY_ADDRESS '$HOME' ")
    assert "a b" in shlex.split(command)
    assert command.endswith('>> "$RATCHET_HOME"/logs/probe.log 2>&1')


def test_a_runtime_environment_is_passed_on_with_our_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"pip": ["ratchet"], "env_vars": {"A": "b", "RATCHET_HOME": "/elsewhere"}}
    monkeypatch.setenv(RUNTIME_ENV_VARIABLE, json.dumps(chosen))
    monkeypatch.setenv("RATCHET_PYTHON", "/opt/venv/bin/python")
    assert runtime_env(Home(tmp_path)) == {
        "pip": ["ratchet"],
        "env_vars": {"A": "b", "RATCHET_HOME": str(tmp_path), "RATCHET_PYTHON": "/opt/venv/bin/python"},
    }


@pytest.mark.parametrize("wrong", ["{", "[1]", "3"])
def test_a_runtime_environment_that_is_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv(RUNTIME_ENV_VARIABLE, wrong)
    with pytest.raises(SpecError, match="RATCHET_RUNTIME_ENV is not a JSON object"):
        runtime_env(Home(tmp_path))


async def test_a_dashboard_that_is_not_there_is_unavailable() -> None:
    async with JobsClient("http://127.0.0.1:9") as jobs:
        with pytest.raises(Unavailable, match=r"dashboard at http://127\.0\.0\.1:9 does not answer"):
            await jobs.session()


@pytest.mark.parametrize("good", ["127.0.0.1:6379", "http://ray-head:8265", "https://ray.example/prefix"])
def test_ways_to_name_a_cluster(good: str) -> None:
    check_ray(good)


@pytest.mark.parametrize("wrong", ["ray-head", "ray://head:10001", "http://"])
def test_what_names_no_cluster(wrong: str) -> None:
    with pytest.raises(SpecError, match="--ray"):
        check_ray(wrong)
