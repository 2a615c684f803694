"""Which code a run is made with."""

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import ratchet
from ratchet.spec import deadlines

_PACKAGES = ("torch", "transformers", "ray", "temporalio", "numpy")
_ROOT = Path(ratchet.__file__).parents[1]


def code_versions() -> dict[str, str]:
    """Versions by package, of those installed here, and `revision` (with `-dirty` where files were changed)
    when Ratchet runs from a git checkout with a commit."""
    versions = {"ratchet": ratchet.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if revision := _revision():
        versions["revision"] = revision
    return versions


def _revision() -> str | None:
    if not (_ROOT / ".git").exists():  # else git would answer for a checkout around an installed Ratchet
        return None
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=deadlines.GIT,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
