"""What the actors of a session share: who they are, and how they are made."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from ratchet.spec.home import HOME_VARIABLE, Home
from ratchet.spec.ids import RAY_NAMESPACE, actor_name
from ratchet.spec.run_spec import RunSpec
from ratchet.telemetry import logs, tracing
from workers.actors.reservation import actor_options


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Given to every actor of a session."""

    run: str
    session: int
    spec: RunSpec
    home: str

    def name(self, role: str, rank: int = 0) -> str:
        return actor_name(role, self.run, self.session, rank)

    @property
    def turn(self) -> Path | None:
        """The file that trainer and generator take turns by; None: each has a device of its own."""
        folder = Home(self.home).session_folder(self.run, self.session)
        return folder / "turn" if self.spec.placement.kind == "colocated" else None

    def enter(self, role: str) -> Home:
        """Set up this process: called first thing in an actor, before anything imports torch."""
        os.environ[HOME_VARIABLE] = self.home
        # Ray sets OMP_NUM_THREADS=1 for actors; libraries read it once, when they are loaded.
        os.environ["OMP_NUM_THREADS"] = str(self.threads)
        # Threads that wait sleep instead of spinning: a spinning one takes its core from the other engine,
        # and from whatever else the machine does.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        logs.configure(role, run=self.run, incarnation=self.session)
        tracing.start(role)
        return Home(self.home)

    @property
    def threads(self) -> int:
        return self.spec.runtime.threads or os.cpu_count() or 1


def get_or_create(actor: Any, config: SessionConfig, role: str) -> Any:
    """The session's actor of that role: detached, so it outlives whoever made it."""
    return actor.options(
        name=config.name(role),
        namespace=RAY_NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        # No cores are reserved: a session needs all its actors, and two that each held half of a machine
        # would wait for each other for ever.
        num_cpus=0,
        max_restarts=0,  # a restarted actor would come back empty: replacing it is our decision
        **actor_options(config.spec.placement, config.run, config.session, role),
    ).remote(config)


def existing(config: SessionConfig, role: str) -> Any:
    """The session's actor of that role. Raises ValueError if there is none."""
    return ray.get_actor(config.name(role), namespace=RAY_NAMESPACE)


def note_actor(config: SessionConfig, role: str, actor_id: str, pid: int) -> None:
    """Leave word of which process plays a part, now that it has come up: `status`, and whoever looks into a
    fault, reads it."""
    note_part(config, role, pid, actor_id)


def note_part(config: SessionConfig, role: str, pid: int, actor_id: str = "") -> None:
    """The same of a process that an actor has made."""
    note = _note(config, role)
    note.parent.mkdir(parents=True, exist_ok=True)
    draft = note.with_name(f".{role}.{os.getpid()}")
    draft.write_text(json.dumps({"pid": pid, "host": ray.util.get_node_ip_address(), "actor": actor_id}))
    draft.replace(note)


def has_come_up(config: SessionConfig, role: str, actor_id: str) -> bool:
    """Whether this very actor had come up once."""
    try:
        return json.loads(_note(config, role).read_text())["actor"] == actor_id
    except (OSError, ValueError, KeyError):
        return False


def actor_id(handle: Any) -> str:
    return handle._actor_id.hex()


def _note(config: SessionConfig, role: str) -> Path:
    return Home(config.home).session_folder(config.run, config.session) / "actors" / f"{role}.json"


def pong() -> None:
    """The answer to a ping."""
