"""The dashboard's pages as they leave the API: what they may load, how long they are kept, what they lack."""

import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

import api.dashboard
from api.app import create_app
from api.dashboard import Dashboard, charts_folder
from api.routers import pages
from api.settings import ApiSettings
from ratchet.spec.home import Home

SOURCES = Path(api.dashboard.__file__).parent
UPLOT = "2d27e8ad3d228164525ce213f9dc716f39b4e3aee0cc773fb3491c96cf4921a2"
"""sha256 of uPlot 1.6.31 as its own project publishes it: the package that brings it is somebody else's."""

SVG_NAMESPACE = "http://www.w3.org"
"""A name: nobody asks this host."""


@pytest_asyncio.fixture
async def client(home: Home) -> AsyncIterator[httpx.AsyncClient]:
    """Of an API that listens wide: its data needs a token."""
    app = create_app(home, ApiSettings(wide=True, allowed_roots=()))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://ratchet.example") as found:
            yield found


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pages, "charts_folder", lambda: None)
    pages.dashboard.cache_clear()
    yield
    pages.dashboard.cache_clear()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/compare?runs=a,b", 200),
        ("/runs/a", 200),
        ("/runs/a/lineage?step=3", 200),
        ("/runs/a/steps/3", 200),
        ("/runs/a/records/7", 200),
        ("/runs/a/nothing/here", 404),
    ],
)
async def test_pages_are_there_for_everybody_and_hold_no_data(
    client: httpx.AsyncClient, path: str, status: int
) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert answer.content == pages.dashboard().document
    assert (await client.get("/v1/runs")).status_code == 401


async def test_pages_run_no_script_but_their_own_files(client: httpx.AsyncClient) -> None:
    answer = await client.get("/")
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert (policy["script-src"], policy["style-src"], policy["connect-src"]) == ("'self'",) * 3
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=|javascript:", answer.text)


async def test_what_a_page_loads_is_here_and_kept_for_ever(client: httpx.AsyncClient) -> None:
    text = (await client.get("/")).text
    wanted = re.findall(r'(?:src|href)="(/assets/[^"]+)"', text)
    assert {path.rpartition("/")[2] for path in wanted} >= {"style.css", "main.js", "theme.js", "uplot.js"}
    for path in wanted:
        answer = await client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert (await client.get("/")).headers["cache-control"] == "no-cache"
    uplot = await client.get(next(path for path in wanted if path.endswith("uplot.js")))
    assert hashlib.sha256(uplot.content).hexdigest() == UPLOT


def test_modules_import_only_what_is_served() -> None:
    served = set(Dashboard.load(charts_folder()).assets)
    for source in SOURCES.glob("*.js"):
        imported = re.findall(r'from "\./([^"]+)"', source.read_text())
        assert set(imported) <= served, source.name


def test_the_sources_name_no_other_host_and_make_no_markup() -> None:
    for source in [*SOURCES.glob("*.js"), *SOURCES.glob("*.html"), *SOURCES.glob("*.css")]:
        text = source.read_text()
        addresses = set(re.findall(r"https?://[\w.]+", text)) - {SVG_NAMESPACE}
        assert not addresses, source.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


@pytest.mark.parametrize(
    "path", ["/assets/0000/main.js", "/assets/{digest}/index.html", "/assets/{digest}/..%2fapp.py"]
)
async def test_other_files_are_not_served(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path.format(digest=pages.dashboard().digest))
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


async def test_without_the_charts_package_the_pages_are_there(
    client: httpx.AsyncClient, no_charts: None
) -> None:
    answer = await client.get("/")
    assert answer.status_code == 200
    assert "uplot" not in answer.text
    assert (await client.get(f"/assets/{pages.dashboard().digest}/main.js")).status_code == 200


def test_a_changed_file_has_another_address(tmp_path: Path) -> None:
    charts = tmp_path / "vendor"
    charts.mkdir()
    for name in ("uplot.iife.min.js", "uplot.min.css"):
        (charts / name).write_text("a")
    before = Dashboard.load(tmp_path).digest
    (charts / "uplot.min.css").write_text("b")
    assert Dashboard.load(tmp_path).digest != before


THEMES = re.findall(r"{\s*color-scheme: (light|dark);(.*?)}", (SOURCES / "style.css").read_text(), re.DOTALL)
"""The light one, and the dark one twice: chosen, and the system's."""
WRITTEN = ("ink", "faint", "accent", "good", "warn", "bad")
BEHIND = ("paper", "sheet", "sunk")
PAIRS = [*((text, behind) for text in WRITTEN for behind in BEHIND)]
PAIRS += [("ink", "warn-soft"), ("ink", "bad-soft"), ("ink", "accent-soft"), ("sheet", "accent")]


def brightness(color: str) -> float:
    """Relative luminance, as WCAG defines it."""
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", range(3))
def test_text_is_readable(theme: int) -> None:
    """WCAG AA: 4.5 to 1, and 3 to 1 for the lines of charts."""
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", THEMES[theme][1]))

    def contrast(one: str, other: str) -> float:
        low, high = sorted((brightness(colors[one]), brightness(colors[other])))
        return (high + 0.05) / (low + 0.05)

    found = {pair: round(contrast(*pair), 2) for pair in PAIRS}
    assert not {pair: ratio for pair, ratio in found.items() if ratio < 4.5}
    lines = {f"c{number}": round(contrast(f"c{number}", "sheet"), 2) for number in range(1, 9)}
    assert not {line: ratio for line, ratio in lines.items() if ratio < 3.0}


def test_both_ways_to_darkness_are_the_same() -> None:
    (light, _), (chosen, one), (system, other) = THEMES
    assert (light, chosen, system) == ("light", "dark", "dark")
    assert re.findall(r"--[\w-]+: [^;]+;", one) == re.findall(r"--[\w-]+: [^;]+;", other)
