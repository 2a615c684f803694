"""Pictures of every page of the dashboard, wide and narrow, light and dark:
`python -m benchmarks.screenshots`.

The pages are real, and so is the API behind them; the runs are those of `benchmarks.gallery`, and what their
workflows would say of themselves is made up, since there is no Temporal.
"""

import argparse
import asyncio
import dataclasses
import tempfile
from pathlib import Path

from playwright.async_api import Browser, Page

from api.doing import OpenActivity
from api.services import Services
from api.workflows import RunWorkflows
from benchmarks.gallery import FORK, MAIN, Gallery
from ratchet.spec.home import Home
from ratchet.spec.stack import StackState
from ratchet.spec.state import RunPhase, RunStatus
from workers.testing.browser import ServedApi, browsing, serving

WIDTHS = {1400: 1000, 400: 860}
"""Of the pictures, and how high the window is."""
PAGES = {
    "runs": "/",
    "run": f"/runs/{MAIN}",
    "run-failed": "/runs/math-cot-b81d44",
    "step": f"/runs/{MAIN}/steps/95",
    "record": f"/runs/{MAIN}/records/1131",
    "lineage": f"/runs/{MAIN}/lineage",
    "lineage-down": f"/runs/{MAIN}/lineage?direction=down&incarnation=1&step=40",
    "compare": f"/compare?runs={MAIN},{FORK}",
    "not-found": "/runs/nobody",
    "empty": "/?name=nobody",
}
DOING = {
    MAIN: (96, 120, 2, ["step 97: roll out prompts 1152 to 1163 with weights 2.96 (7 of 12 groups)"]),
    FORK: (91, 120, 1, ["step 92: train on prompts 1092 to 1103"]),
}


class ScriptedWorkflows(RunWorkflows):
    """Workflows that say what a picture needs."""

    async def status(self, run: str) -> RunStatus | None:
        if run not in DOING:
            return None
        step, steps, incarnation, doing = DOING[run]
        return RunStatus(
            run=run,
            phase=RunPhase.RUNNING,
            incarnation=incarnation,
            step=step,
            max_num_steps=steps,
            doing=doing,
            paused=False,
            stop_requested=False,
            head=None,
            last_checkpoint=None,
        )

    async def open_activities(self, run: str) -> list[OpenActivity]:
        return []

    async def failure(self, run: str) -> None:
        return None


def served(home: Home, api: ServedApi) -> None:
    """Put the scripted workflows in place."""
    services: Services = api.app.state.services
    api.app.state.services = dataclasses.replace(services, workflows=ScriptedWorkflows(home))


async def photograph(
    browser: Browser, url: str, folder: Path, pages: dict[str, str], widths: dict[int, int]
) -> list[Path]:
    """One picture of each page, in each width and theme."""
    taken: list[Path] = []
    for width, height in widths.items():
        for theme in ("light", "dark"):
            context = await browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=theme,
                device_scale_factor=1 if width > 800 else 2,
                reduced_motion="reduce",
            )
            page = await context.new_page()
            for name, path in pages.items():
                await _open(page, url + path)
                target = folder / f"{name}-{width}-{theme}.png"
                await page.screenshot(path=target, full_page=True)
                taken.append(target)
            await context.close()
    return taken


async def _open(page: Page, address: str) -> None:
    """Until everything is there: nothing says that it loads, and every chart is drawn."""
    await page.goto(address)
    await page.locator("main h1").first.wait_for()
    await page.locator("main [role=status]").first.wait_for(state="detached")
    for figure in await page.locator("figure.chart .plot").all():
        if await figure.is_visible():
            await figure.locator("canvas").wait_for()
    await page.mouse.move(0, 0)


async def take(folder: Path, only: list[str], widths: dict[int, int]) -> list[Path]:
    pages = {name: path for name, path in PAGES.items() if not only or name in only}
    with tempfile.TemporaryDirectory(prefix="ratchet-gallery-") as root:
        home = Home(root)
        state = StackState(
            supervisor_pid=1,
            temporal_address="127.0.0.1:1",
            namespace="ratchet",
            temporal_ui="http://127.0.0.1:8233",
        )
        home.state_file.write_text(state.model_dump_json())
        Gallery(home).fill()
        with serving(home) as api:
            served(home, api)
            async with browsing() as browser:
                return await photograph(browser, api.url, folder, pages, widths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("docs/screenshots"), help="where to (%(default)s)"
    )
    parser.add_argument("--only", action="append", default=[], choices=sorted(PAGES), help="one page")
    parser.add_argument("--width", type=int, action="append", choices=sorted(WIDTHS), help="one width")
    options = parser.parse_args()
    widths = {width: height for width, height in WIDTHS.items() if width in (options.width or WIDTHS)}
    options.folder.mkdir(parents=True, exist_ok=True)
    for picture in asyncio.run(take(options.folder, options.only, widths)):
        print(picture)


if __name__ == "__main__":
    main()
