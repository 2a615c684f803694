"""Which code a run is made with, and what it trains on."""

import hashlib
import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from pydantic import JsonValue

import ratchet
from ratchet.spec import deadlines
from ratchet.spec.run_spec import EnvironmentSpec

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


def input_digests(spec: EnvironmentSpec) -> dict[str, JsonValue]:
    """What decides the prompts and their scores: `environment` (its name), `environment_digest` (sha256 over
    name, options and, of a package's environment, the package's version), and where it reads a file,
    `dataset` and `dataset_digest` (sha256 of the file; None: this host cannot read it)."""
    package = spec.name.partition(":")[0].partition(".")[0]
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        version = ratchet.__version__
    content = json.dumps([spec.name, spec.options, version], sort_keys=True, ensure_ascii=False)
    digests: dict[str, JsonValue] = {
        "environment": spec.name,
        "environment_digest": hashlib.sha256(content.encode()).hexdigest(),
    }
    if isinstance(path := spec.options.get("path"), str):
        digests |= {"dataset": path, "dataset_digest": _file_digest(Path(path).expanduser())}
    return digests


def _file_digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


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
