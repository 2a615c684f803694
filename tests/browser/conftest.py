"""A browser, an API to look at, and what no page may do: ask another host, break, or run what it shows."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect
from temporalio.testing import WorkflowEnvironment

from benchmarks.gallery import Gallery
from ratchet.spec.home import Home
from ratchet.spec.stack import StackState
from workers.testing.browser import ServedApi, browsing, chromium, serving
from workers.testing.fixtures import require
from workers.testing.scripted import ScriptedStack, scripted_stack

PATIENCE_MS = 30_000
AWAY = ("Failed to load resource", "net::ERR_")
"""How a console says that an address did not answer; what a page says about it is tested."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    require(chromium)
    expect.set_options(timeout=PATIENCE_MS)
    async with browsing() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page in a session of its own. Afterwards: it asked one host only, and nothing broke in it."""
    context = await browser.new_context(viewport={"width": 1400, "height": 1000}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    hosts: set[str] = set()
    broken: list[str] = []
    context.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page = await context.new_page()
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on(
        "console",
        lambda said: (
            broken.append(said.text) if said.type == "error" and not said.text.startswith(AWAY) else None
        ),
    )
    yield page
    await context.close()
    assert len(hosts) <= 1, hosts
    assert not broken, broken


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A state folder, of a stack without Temporal."""
    home = Home(tmp_path / "home")
    home.root.mkdir()
    state = StackState(
        supervisor_pid=1,
        temporal_address="127.0.0.1:1",
        namespace="ratchet",
        ray_dashboard="http://ray-head:8265",
    )
    home.state_file.write_text(state.model_dump_json())
    return home


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A state folder with runs of every kind, to be copied."""
    home = Home(tmp_path_factory.mktemp("gallery"))
    Gallery(home).fill()
    return home


@pytest.fixture
def gallery(home: Home, filled: Home) -> Iterator[ServedApi]:
    """An API with runs of every kind."""
    shutil.copytree(filled.root, home.root, dirs_exist_ok=True)
    with serving(home) as api:
        yield api


@pytest_asyncio.fixture(loop_scope="session")
async def stack(ratchet_temporal: WorkflowEnvironment, home: Home) -> AsyncIterator[ScriptedStack]:
    """Everything that carries out runs, over engines that follow a script."""
    client = ratchet_temporal.client
    state = StackState(
        supervisor_pid=1,
        temporal_address=client.service_client.config.target_host,
        namespace=client.namespace,
        temporal_ui="http://127.0.0.1:8233",
    )
    home.state_file.write_text(state.model_dump_json())
    async with scripted_stack(client, home.root) as stack:
        yield stack
