"""The files of the dashboard: one document for every page, and the modules, styles and charts it loads.

There is no build step: the files beside this one are served as they are, read once and kept. Their address
holds a digest of all of them, so that browsers may keep them for ever and see a new version at once.
"""

import hashlib
import importlib.util
import logging
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Self

logger = logging.getLogger(__name__)

DOCUMENT = "index.html"
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

CHARTS_PACKAGE = "youplot"
"""Its wheel holds uPlot, which draws the charts. It is never imported."""
CHARTS = {"uplot.js": "vendor/uplot.iife.min.js", "uplot.css": "vendor/uplot.min.css"}
"""Files of that package, and what they are called here."""
_CHARTS_MARKUP = (
    '<link rel="stylesheet" href="/assets/$assets/uplot.css">\n'
    '    <script src="/assets/$assets/uplot.js" defer></script>'
)


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    document: bytes
    """The page, in UTF-8: every page is this one, and asks the API for what it shows."""
    digest: str
    assets: dict[str, Asset]
    """By name. Without the charts, where their package is missing: the pages say so."""

    @classmethod
    def load(cls, charts: Path | None = None) -> Self:
        """Read everything. `charts`: the folder of the package that holds them; None: there are none."""
        folder = resources.files(__name__)
        assets = {
            file.name: Asset(file.read_bytes(), MEDIA_TYPES[Path(file.name).suffix])
            for file in folder.iterdir()
            if Path(file.name).suffix in MEDIA_TYPES
        }
        markup = ""
        if charts is not None:
            for name, path in CHARTS.items():
                assets[name] = Asset((charts / path).read_bytes(), MEDIA_TYPES[Path(name).suffix])
            markup = _CHARTS_MARKUP
        digest = _digest(assets)
        template = (folder / DOCUMENT).read_text("utf-8").replace("$charts", markup)
        return cls(Template(template).substitute(assets=digest).encode(), digest, assets)


def charts_folder() -> Path | None:
    """Where the package with the charts is installed; None: it is not, or not with these files."""
    found = importlib.util.find_spec(CHARTS_PACKAGE)
    for location in (found and found.submodule_search_locations) or ():
        folder = Path(location)
        if all((folder / path).is_file() for path in CHARTS.values()):
            return folder
    logger.warning("the dashboard has no charts: pip install %s", CHARTS_PACKAGE)
    return None


def _digest(assets: dict[str, Asset]) -> str:
    whole = hashlib.sha256()
    for name in sorted(assets):
        whole.update(name.encode() + b"\0" + hashlib.sha256(assets[name].content).digest())
    return whole.hexdigest()[:16]
