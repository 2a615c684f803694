"""All of docker-compose.yml as processes, Ray's two nodes included: a run from launch to checkpoint."""

import asyncio
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ratchet.spec import deadlines
from ratchet.spec.views import RunView
from tests.deploy.compose import Here
from workers.supervisor.ports import are_free

pytest.importorskip("aiohttp_cors", reason="a Ray dashboard needs ray[default]")

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]

STEPS = 2
WITHIN_S = 240.0
SPEC: dict[str, Any] = {
    "name": "composed",
    "policy": {"model": "tiny"},
    "generation": {"max_new_tokens": 5},
    "grpo": {"num_prompts_per_step": 4, "num_generations_per_prompt": 4, "max_num_steps": STEPS},
    "environment": {"name": "arithmetic"},
    "evaluation": {"num_problems": 0},
    "runtime": {"threads": 1},
}


def this_host() -> str:
    """The address that Ray takes for this host's: nodes of several cannot speak over loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return probe.getsockname()[0]
        except OSError:
            pytest.skip("this host has no address but loopback")


@pytest.fixture
def everything(here: Here, models: Path, tmp_path: Path) -> Iterator[Here]:
    port = next(port for port in range(21000, 23000, 10) if are_free(port, 2))
    mark = secrets.token_hex(8)
    token = tmp_path / "ray_token"
    token.write_text(secrets.token_hex(32))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models").symlink_to(models)
    more = {
        "ray-head:6379": f"{this_host()}:{port}",
        "6379": str(port),
        "ray-head:8265": f"127.0.0.1:{port + 1}",
        "8265": str(port + 1),
        "--dashboard-host=0.0.0.0": "--dashboard-host=127.0.0.1",
        "/run/secrets/ray_token": str(token),
    }
    # One machine has one /tmp/ray for everybody's clusters.
    besides = {"RATCHET_TEST_MARK": mark, "RAY_TMPDIR": f"/tmp/rt-{mark[:6]}", "OMP_NUM_THREADS": "1"}
    found = Here({**here.instead, **more}, here.logs, besides, here.used)
    yield found
    for process in psutil.process_iter():
        try:
            if process.environ().get("RATCHET_TEST_MARK") == mark:
                process.kill()
        except psutil.Error:
            pass
    shutil.rmtree(f"/tmp/rt-{mark[:6]}", ignore_errors=True)


async def test_a_real_run_goes_through_everything_that_the_containers_run(
    everything: Here, api_url: str
) -> None:
    here = everything
    await asyncio.to_thread(here.run, "migrate")
    token = (await asyncio.to_thread(here.run, "token")).strip()
    with ExitStack() as stack:
        head = stack.enter_context(here.running("ray-head"))
        await here.until_healthy("ray-head")
        sessions = stack.enter_context(here.running("ray-worker", "sessions"))["sessions"]
        await here.until_healthy("ray-worker", "sessions")
        # Not before: on one machine, a supervisor that starts ends whatever else runs for its folder.
        stack.enter_context(here.running("api", "control-worker"))
        await here.until_healthy("api", "control-worker")
        run = await launched_and_ended(api_url, token)
        assert (run.phase, run.step, run.fault) == ("completed", STEPS, None)
        assert run.last_checkpoint is not None
        assert await asyncio.to_thread(Path(run.last_checkpoint.path).is_dir)
        sessions.terminate()
        await asyncio.to_thread(sessions.wait, deadlines.STOP_STACK)
        assert head["ray-head"].poll() is None


async def launched_and_ended(api_url: str, token: str) -> RunView:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=api_url, headers=headers, timeout=deadlines.HTTP) as api:
        launched = await api.post("/v1/runs", json={"spec": SPEC})
        assert launched.status_code == 201, launched.text
        run = RunView.model_validate_json(launched.content)
        async with asyncio.timeout(WITHIN_S):
            while not run.phase.final:
                await asyncio.sleep(0.5)
                run = RunView.model_validate_json((await api.get(f"/v1/runs/{run.id}")).content)
        return run
