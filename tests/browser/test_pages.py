"""Every page: complete on its own, narrow and wide; what it says when there is nothing, or all is lost."""

import re
import shutil
import time
from collections.abc import Iterator

import pytest
from playwright.async_api import Page, expect

from api.routers import pages
from api.settings import ApiSettings
from benchmarks.gallery import FORK, MAIN, spec
from benchmarks.screenshots import PAGES
from ratchet.spec.access import Role
from ratchet.spec.control import RecordRequest, RegisterRun, StateEntry
from ratchet.spec.home import Home
from ratchet.spec.state import RunPhase
from ratchet.store import Store, Tokens
from workers.testing.browser import ServedApi, serving

pytestmark = pytest.mark.browser


async def settled(page: Page, address: str) -> None:
    await page.goto(address)
    await page.locator("main h1").first.wait_for()
    await page.locator("main [role=status]").first.wait_for(state="detached")


async def test_pages_fit_their_window_and_ask_nobody_else(page: Page, gallery: ServedApi) -> None:
    """The fixture has seen every request."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for width in (1400, 400):
        await page.set_viewport_size({"width": width, "height": 900})
        for name, path in PAGES.items():
            await settled(page, gallery.url + path)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
    assert len(asked) > len(PAGES)
    assert all(url.startswith(gallery.url) for url in asked)


async def test_a_run_shows_what_was_measured_and_what_was_lost(page: Page, gallery: ServedApi) -> None:
    await settled(page, f"{gallery.url}/runs/{MAIN}")
    for title in (
        "Reward",
        "Response length",
        "Entropy",
        "KL",
        "Logprob error",
        "Generation speed",
        "Gradient norm",
    ):
        await expect(page.get_by_role("img", name=f"{title} by step, up to step 96")).to_be_visible()
    await expect(page.get_by_role("img", name="Step time by phase")).to_be_visible()
    await expect(page.locator("figure.chart canvas").first).to_be_visible()
    incidents = page.get_by_role("table", name="2 incidents")
    await expect(incidents.get_by_role("row").nth(1)).to_contain_text("restored step 60 as incarnation 2")
    await expect(page.locator(".rack-loss")).to_have_count(2)
    figures = page.locator("figure.chart")
    before = await figures.first.element_handle()
    await page.get_by_label("On this page").get_by_role("link", name="Steps").click()
    await expect(page.get_by_role("heading", name="Steps")).to_be_in_viewport()
    await page.get_by_role("button", name="Older").click()
    await expect(page.get_by_role("row", name="61 again")).to_contain_text("2.61.")
    assert await before.evaluate("node => node.isConnected")  # the page is still the same
    ray = page.get_by_role("link", name="Ray dashboard")
    await expect(ray).to_have_attribute("href", "http://ray-head:8265")


async def test_a_failed_run_says_why_and_what_to_type(page: Page, gallery: ServedApi) -> None:
    await settled(page, f"{gallery.url}/runs/math-cot-b81d44")
    fault = page.get_by_role("group", name="Fault")
    await expect(fault).to_contain_text("SpecError")
    await expect(fault).to_contain_text("name a file below an allowed root")
    await expect(page.get_by_text("ratchet run resume math-cot-b81d44")).to_be_visible()
    await expect(page.get_by_text("It ended before its first step")).to_be_visible()


async def test_lists_are_filtered_and_runs_compared(page: Page, gallery: ServedApi) -> None:
    await settled(page, gallery.url)
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(8)
    lost = page.get_by_role("row", name=MAIN)
    await expect(lost).to_contain_text(re.compile(r"96 / 120.*0\.777.*9\d\.\d %.*trainer"))
    await page.get_by_label("State").select_option("completed")
    await expect(rows).to_have_count(2)
    await page.go_back()
    await page.get_by_label("Recipe").fill("arithmetic")
    await page.get_by_label("Recipe").press("Enter")
    await expect(rows).to_have_count(3)
    for run in (MAIN, FORK):
        await page.get_by_label(f"Compare {run}").check()
    await page.get_by_role("link", name="Compare 2 runs").click()
    differs = page.get_by_role("table", name="Keys that differ")
    await expect(differs.get_by_role("row")).to_have_count(2)
    await expect(differs).to_contain_text("policy.optimizer.lr")
    chart = page.get_by_role(
        "img", name=re.compile(rf"Reward by step, up to step 96: {MAIN} 0.\d+, {FORK} 0.")
    )
    await expect(chart).to_be_visible()


async def test_lists_go_on_where_a_page_ends(page: Page, home: Home) -> None:
    store = Store(home.store_url)
    store.migrate()
    for number in range(60):
        request = RegisterRun(run=f"run-{number:02}", spec=spec(), workflow_run_id=str(number), incarnation=1)
        store.register_run(request, at=1000.0 + number, code={})
    with serving(home) as api:
        await settled(page, api.url)
        await expect(page.locator("tbody tr")).to_have_count(50)
        await page.get_by_role("link", name="Older runs").click()
        await expect(page.locator("tbody tr")).to_have_count(10)
        await expect(page.get_by_role("link", name="run-00")).to_be_visible()
        await page.get_by_role("link", name="Newest").click()
        await expect(page.get_by_role("link", name="run-59")).to_be_visible()
    store.close()


async def test_what_is_not_there_is_said(page: Page, gallery: ServedApi) -> None:
    for path, words in {
        "/runs/nobody": "there is no run nobody",
        "/runs/a/b/c": "There is no page /runs/a/b/c",
        f"/runs/{MAIN}/records/99999": "no finished group of key 99999",
        f"/runs/{MAIN}/lineage?incarnation=9": f"run {MAIN} has no weights 9.96",
    }.items():
        await page.goto(gallery.url + path)
        await expect(page.get_by_role("heading", name="Not found")).to_be_visible()
        await expect(page.locator("main")).to_contain_text(words)
    await settled(page, f"{gallery.url}/runs/{MAIN}/steps/110")
    await expect(page.locator("main")).to_contain_text("this one has not come")
    await settled(page, f"{gallery.url}/runs/{MAIN}/steps/5")
    await expect(page.locator("main")).to_contain_text("The journal holds nothing of this step any more")


async def test_while_the_api_is_away_the_page_says_so_and_misses_nothing(
    page: Page, home: Home, gallery: ServedApi
) -> None:
    await settled(page, gallery.url)
    await expect(page.get_by_text("Live")).to_be_visible()
    gallery.stop()
    banner = page.get_by_role("alert")
    await expect(banner).to_contain_text("trying again")
    store = Store(home.store_url)
    at = time.time()
    store.register_run(
        RegisterRun(run="meanwhile", spec=spec(), workflow_run_id="w", incarnation=1), at=at, code={}
    )
    entry = StateEntry(phase=RunPhase.FAILED, step=18)
    store.record(RecordRequest(run="tiny-addition-e07d35", incarnation=1, at=at, entries=(entry,)))
    store.close()
    await page.get_by_role("button", name="Try now").click()
    await expect(banner).to_contain_text("trying again")
    gallery.start()
    await expect(banner).to_be_hidden()
    await expect(page.get_by_role("row", name="meanwhile")).to_contain_text("starting")
    await expect(page.get_by_role("row", name="tiny-addition-e07d35")).to_contain_text("failed")


async def test_a_token_is_asked_for_once_and_carries_the_stream_too(
    page: Page, home: Home, filled: Home
) -> None:
    shutil.copytree(filled.root, home.root, dirs_exist_ok=True)
    store = Store(home.store_url)
    _, token = Tokens(store).create("ada", Role.VIEWER, by="test", at=time.time())
    store.close()
    with serving(home, ApiSettings(wide=True, allowed_roots=())) as api:
        await page.goto(api.url)
        asked = page.get_by_role("dialog", name="Token")
        await asked.get_by_label("Bearer token").fill("ratchet_00000000_wrong")
        await asked.get_by_role("button", name="Continue").click()
        await expect(asked.get_by_role("alert")).to_have_text("This token is not known here, or was revoked.")
        await asked.get_by_label("Bearer token").fill(token)
        await asked.get_by_role("button", name="Continue").click()
        await expect(page.locator("tbody tr")).to_have_count(8)
        await expect(page.get_by_text("Live")).to_be_visible()
        await page.goto(f"{api.url}/runs/{MAIN}")  # another document of the same tab
        await page.get_by_role("button", name="Pause").click()
        await expect(page.get_by_text("is viewer, and this needs operator")).to_be_visible()
        assert await page.evaluate("JSON.stringify(localStorage)") == "{}"


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pages, "charts_folder", lambda: None)
    pages.dashboard.cache_clear()
    yield
    pages.dashboard.cache_clear()


async def test_without_charts_a_page_says_what_to_install(
    page: Page, no_charts: None, gallery: ServedApi
) -> None:
    await settled(page, f"{gallery.url}/runs/{MAIN}")
    await expect(page.locator("#trend")).to_contain_text("pip install youplot")
    await expect(page.get_by_role("table", name="2 incidents")).to_be_visible()


async def test_the_theme_is_the_systems_until_one_is_chosen(page: Page, gallery: ServedApi) -> None:
    async def dark() -> bool:
        return await page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"

    await page.emulate_media(color_scheme="dark")
    await settled(page, gallery.url)
    assert await dark()
    await page.get_by_role("button", name="Theme: system").click()
    assert not await dark()
    await page.reload()
    await expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert not await dark()
