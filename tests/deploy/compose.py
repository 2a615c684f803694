"""docker-compose.yml as its containers would see it: what they run, and with what environment."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import ratchet

ROOT = Path(ratchet.__file__).parents[1]


@cache
def compose() -> dict[str, Any]:
    """The file, with YAML's merges done, and variables at their defaults. `$$` stands for a dollar there."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / "docker-compose.yml").read_text())
    return yaml.safe_load(text.replace("$$", "$"))


def services() -> dict[str, dict[str, Any]]:
    return compose()["services"]


def _of_image() -> list[str]:
    """The one in the Dockerfile."""
    found = re.search(r"HEALTHCHECK .*\\\n\s+CMD (\[.*\])", (ROOT / "Dockerfile").read_text())
    assert found is not None
    return ["CMD", *json.loads(found[1])]


def _program(name: str) -> str:
    """An image has one Python environment; here it is this one."""
    beside = Path(sys.executable).with_name(name)
    return sys.executable if name == "python" else str(beside) if beside.exists() else name


@dataclass(frozen=True)
class Here:
    """Runs services of the file on this machine. `instead`: what stands here for a word, or a part of one, of
    the file: addresses, ports, paths. Each of them must be used; `{service}` in it is the service's name."""

    instead: Mapping[str, str]
    logs: Path
    besides: Mapping[str, str] = field(default_factory=dict)
    """Variables that only this machine needs."""
    used: set[str] = field(default_factory=set)

    def words(self, service: str) -> list[str]:
        words = [self._here(service, str(word)) for word in services()[service]["command"]]
        return [_program(words[0]), *words[1:]]

    def environment(self, service: str) -> dict[str, str]:
        named = services()[service].get("environment", {})
        own = {name: self._here(service, str(value)) for name, value in named.items()}
        ours = {
            name: value for name, value in os.environ.items() if not name.startswith(("RATCHET_", "RAY_"))
        }
        code = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**ours, "PYTHONPATH": code, "PATH": path, **own, **self.besides}

    def run(self, service: str, within: float = 60.0) -> str:
        """Run a service that ends by itself, and return what it says."""
        done = subprocess.run(
            self.words(service),
            env=self.environment(service),
            cwd=self.logs,
            capture_output=True,
            text=True,
            timeout=within,
        )
        assert done.returncode == 0, f"{service}: {done.stderr}"
        return done.stdout

    def start(self, service: str) -> "subprocess.Popen[bytes]":
        with (self.logs / f"{service}.log").open("ab") as log:
            return subprocess.Popen(
                self.words(service),
                env=self.environment(service),
                cwd=self.logs,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @contextmanager
    def running(self, *names: str) -> "Iterator[dict[str, subprocess.Popen[bytes]]]":
        """Services that go on; whatever is left of them at the end is killed."""
        processes = {name: self.start(name) for name in names}
        try:
            yield processes
        finally:
            for process in processes.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)

    async def until_healthy(self, *names: str, within: float = 150.0) -> None:
        async with asyncio.timeout(within):
            for name in names:
                while not await asyncio.to_thread(self.healthy, name):
                    await asyncio.sleep(0.2)

    def healthy(self, service: str) -> bool:
        """Whether the health check of a service, or else of its image, says so."""
        test = services()[service].get("healthcheck", {}).get("test") or _of_image()
        kind, *words = [self._here(service, str(word)) for word in test]
        command = ["sh", "-c", *words] if kind == "CMD-SHELL" else words
        done = subprocess.run(
            [_program(command[0]), *command[1:]],
            env=self.environment(service),
            cwd=self.logs,
            capture_output=True,
            timeout=60,
        )
        return done.returncode == 0

    def _here(self, service: str, word: str) -> str:
        for there, here in self.instead.items():
            if there in word:
                self.used.add(there)
                word = word.replace(there, here.replace("{service}", service))
        return word
