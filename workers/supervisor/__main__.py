"""`python -m workers.supervisor up|down|status|logs|doctor`, which `ratchet up` and its kin are."""

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import NoReturn

from pydantic import BaseModel

from ratchet.spec import deadlines
from ratchet.spec.admission import Limit
from ratchet.spec.faults import RatchetError, SpecError, StorageFault, Unavailable, as_fault
from ratchet.spec.home import HOME_VARIABLE, STORE_VARIABLE, Home
from ratchet.telemetry.logs import readable
from workers.supervisor.state import LeaseView, PartStatus, SupervisorState

VERBS = ("up", "down", "status", "logs", "doctor")
SHORTEST_LEASE = 4.0
"""Seconds: below, a busy machine would lose it for nothing."""
FAILED, BAD_INPUT, UNAVAILABLE = 1, 2, 3
"""Exit codes; `status` ends with the last one when nothing runs."""


def main() -> None:
    words = sys.argv[1:]
    if not words or words[0] not in (*VERBS, "-h", "--help"):
        words = ["up", *words]
    options = _parser().parse_args(words)
    home = Home(options.home)
    os.environ[HOME_VARIABLE] = str(home.root)
    try:
        options.verb(home, options)
    except (RatchetError, OSError) as error:
        fault = as_fault(_named(error, home) if isinstance(error, OSError) else error)
        if options.json:
            _say(json.dumps({"error": fault.model_dump(mode="json")}))
        else:
            sys.stderr.write(f"error: {fault.message}\n")
        sys.exit(_exit_code(error))


def _named(error: OSError, home: Home) -> RatchetError:
    """All that a stack writes is under its home."""
    reason = (error.strerror or str(error)).lower()
    return StorageFault(
        f"{error.filename or home.root}: {reason}: free or repair it, or choose another {HOME_VARIABLE}"
    )


def _exit_code(error: Exception) -> int:
    """The same as of `ratchet run`."""
    match error:
        case SpecError():
            return BAD_INPUT
        case Unavailable():
            return UNAVAILABLE
        case _:
            return FAILED


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error is said."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"error: {message}: see `{self.prog} --help`\n")


def _parser() -> argparse.ArgumentParser:
    common = _Parser(add_help=False)
    common.add_argument(
        "--home", metavar="DIR", help=f"state folder (default: ${HOME_VARIABLE}, else ~/.ratchet)"
    )
    common.add_argument("--json", action="store_true", help="answer in JSON")
    parser = _Parser(prog="ratchet", description="The Ratchet stack of this machine.")
    verbs = parser.add_subparsers(required=True, metavar="|".join(VERBS))

    up = verbs.add_parser("up", parents=[common], help="start Temporal, Ray, the workers and the API")
    up.set_defaults(verb=_up)
    where = up.add_mutually_exclusive_group()
    where.add_argument(
        "--detach", action="store_true", help="return when all is up; it goes on in the background"
    )
    where.add_argument("--foreground", action="store_true", help="stay until Ctrl-C (this is the default)")
    up.add_argument(
        "--temporal", metavar="HOST:PORT", help="use this Temporal server instead of starting one"
    )
    up.add_argument(
        "--ray",
        metavar="HOST:PORT|URL",
        help="use this Ray cluster instead of starting one: HOST:PORT here, http://HOST:8265 anywhere",
    )
    up.add_argument("--temporal-port", type=_port, metavar="PORT", help="port of the Temporal server")
    up.add_argument("--ui-port", type=_port, metavar="PORT", help="port of Temporal's web pages")
    up.add_argument("--api-port", type=_port, metavar="PORT", help="port of the API")
    up.add_argument(
        "--max-sessions",
        metavar="N",
        help="so many runs may have a session at a time, others are queued; remembered (default: unlimited)",
    )
    up.add_argument("--no-api", action="store_true", help="without the API")
    up.add_argument("--parts", metavar="A,B", help="only these of temporal, ray, control, api, sinks")
    up.add_argument(
        "--standby",
        action="store_true",
        help="be one of several that share RATCHET_STORE and Temporal: one is active, the others wait",
    )
    up.add_argument(
        "--take-over-after",
        type=_lease,
        metavar="SECONDS",
        help=f"with --standby: how long this one may be silent before it is replaced ({deadlines.LEASE:.0f})",
    )
    up.add_argument("--report", type=int, help=argparse.SUPPRESS)

    verbs.add_parser("down", parents=[common], help="stop it; runs and checkpoints stay").set_defaults(
        verb=_down
    )
    verbs.add_parser("status", parents=[common], help="what is up, and where").set_defaults(verb=_status)
    verbs.add_parser("doctor", parents=[common], help="check this machine").set_defaults(verb=_doctor)
    logs = verbs.add_parser("logs", parents=[common], help="show the log of a part")
    logs.set_defaults(verb=_logs)
    logs.add_argument("name", nargs="?", help="which; without it: those there are")
    logs.add_argument("-n", "--lines", type=int, default=50, help="how many of its last lines (50)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on showing what is added")
    return parser


def _port(text: str) -> int:
    from workers.supervisor.net import MAX_PORT

    if not (text.isdecimal() and 1 <= int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"{text} is no port: choose one from 1024 to {MAX_PORT}")
    return int(text)


def _lease(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds >= SHORTEST_LEASE:
        raise argparse.ArgumentTypeError(f"{text} is no time: choose {SHORTEST_LEASE:.0f} seconds or more")
    return seconds


def _up(home: Home, options: argparse.Namespace) -> None:
    from workers.supervisor import up
    from workers.supervisor.doors import check_ray
    from workers.supervisor.net import host_and_port
    from workers.supervisor.supervisor import Options, Part

    parts = set(Part)
    if options.parts:
        try:
            parts = {Part(name) for name in options.parts.split(",")}
        except ValueError as error:
            raise SpecError(f"--parts {options.parts}: {error}; there are {', '.join(Part)}") from None
    if options.no_api:
        parts.discard(Part.API)
    if Part.CONTROL in parts and Part.TEMPORAL not in parts:
        raise SpecError("--parts control needs temporal")
    if options.temporal:
        host_and_port(options.temporal, "--temporal")
    if options.ray:
        check_ray(options.ray)
    if options.standby:
        _check_standby(options)
    elif options.take_over_after:
        raise SpecError("--take-over-after needs --standby")
    asked = {"temporal": options.temporal_port, "temporal_ui": options.ui_port, "api": options.api_port}
    chosen = Options(
        parts=frozenset(parts),
        temporal=options.temporal,
        ray=options.ray,
        ports={name: port for name, port in asked.items() if port is not None},
        limit=Limit.parse(options.max_sessions, "--max-sessions") if options.max_sessions else None,
        standby=(options.take_over_after or deadlines.LEASE) if options.standby else None,
    )

    def started(state: SupervisorState) -> None:
        _say(state.model_dump_json() if options.json else _welcome(home, state, options.detach))

    if options.detach:
        own = {"up", "--detach", "--json"}
        started(up.detach(home, [word for word in sys.argv[1:] if word not in own]))
    else:
        up.run(home, chosen, options.report, started)


def _check_standby(options: argparse.Namespace) -> None:
    """Supervisors stand by for each other around a Temporal server and a store that outlive each of them."""
    if not options.temporal:
        raise SpecError("--standby needs a Temporal server that the others use too: --temporal HOST:PORT")
    if not os.environ.get(STORE_VARIABLE):
        raise SpecError(
            f"--standby needs a store that the others use too: {STORE_VARIABLE}=postgresql://USER@HOST/DATABASE"
        )
    if options.ray:
        raise SpecError("--standby starts a Ray head where it is active: leave out --ray")


def _down(home: Home, options: argparse.Namespace) -> None:
    from workers.supervisor.stop import down

    swept = asyncio.run(down(home))
    if swept.supervisor is None and not swept.processes:
        text = f"nothing ran from {home.root}"
    else:
        more = f" ({swept.processes} left-over processes ended)" if swept.processes else ""
        text = f"the stack of {home.root} is down{more}; its runs and checkpoints stay"
    _answer(options, swept, f"{text}\nnext: ratchet up")


def _status(home: Home, options: argparse.Namespace) -> None:
    from workers.supervisor.status import status

    found = status(home)
    if found.running:
        links = [f"API  {found.api_url}"] if found.api_url else []
        links += [f"Temporal UI  {found.temporal_ui}"] if found.temporal_ui else []
        phase = "standing by" if found.standing_by else "up" if found.ready else "starting"
        head = f"{home.root}: {phase}, supervisor pid {found.supervisor_pid}"
        lease = [_lease_words(found.lease)] if found.lease else []
        links += [f"sessions  {found.max_sessions} at a time at most"] if found.max_sessions else []
        rows = [*lease, *_table(found.parts)]
        text = "\n".join([head, *rows, *links, "next: ratchet logs NAME · ratchet down"])
    else:
        text = f"nothing runs from {home.root}\nnext: ratchet up"
    _answer(options, found, text)
    if not found.running:
        sys.exit(UNAVAILABLE)


def _logs(home: Home, options: argparse.Namespace) -> None:
    from workers.supervisor.status import log, logs

    if options.name is None:
        found = {name: str(path) for name, path in logs(home).items()}
        _say(json.dumps(found) if options.json else "\n".join(found) or f"no logs in {home.logs} yet")
        return
    path = log(home, options.name)
    if options.json:
        _say(json.dumps({"name": options.name, "path": str(path)}))
    else:
        _tail(str(path), options.lines, options.follow)


def _doctor(home: Home, options: argparse.Namespace) -> None:
    from workers.supervisor.doctor import doctor

    report = doctor(home)
    marks = {"ok": "ok  ", "note": "note", "bad": "BAD "}
    lines = [
        f"{marks[check.verdict]}  {check.name}: {check.found}"
        + (f"\n      → {check.fix}" if check.fix else "")
        for check in report.checks
    ]
    _answer(options, report, "\n".join(lines))
    if not report.healthy:
        sys.exit(FAILED)


# --- words


def _answer(options: argparse.Namespace, model: BaseModel, text: str) -> None:
    _say(model.model_dump_json() if options.json else text)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _welcome(home: Home, state: SupervisorState, detached: bool) -> str:
    if state.standing_by_for:
        end = "ratchet down" if detached else "Ctrl-C"
        waits = f"Standing by, from {home.root}: {state.standing_by_for} is active"
        return f"{waits}\nnext: ratchet status · {end} ends it"
    lines = [f"Ratchet is up, from {home.root}"]
    lines += [f"  API          {state.api_url}"] if state.api_url else []
    lines += [f"  Temporal UI  {state.temporal_ui}"] if state.temporal_ui else []
    end = "ratchet down stops it" if detached else "Ctrl-C stops it"
    return "\n".join([*lines, f"next: ratchet run launch SPEC · ratchet status · {end}"])


def _lease_words(lease: LeaseView) -> str:
    """`  lease  active, epoch 3, renewed 0.4 s ago, lost after 30 s`, and how it came to that."""
    age = max(0.0, time.time() - lease.confirmed_at) + lease.age_s
    who = "active" if lease.role == "active" else f"held by {lease.holder or 'nobody'}"
    words = f"  lease  {who}, epoch {lease.epoch}, renewed {age:.1f} s ago, lost after {lease.ttl_s:.0f} s"
    return f"{words}\n         {lease.took_over}" if lease.took_over else words


def _table(parts: Iterable[PartStatus]) -> list[str]:
    rows = [
        (
            part.name,
            part.state,
            str(part.pid or "-"),
            part.address or "",
            f"started {part.starts}×" if part.starts > 1 else "",
            part.last_end or "",
        )
        for part in parts
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _tail(path: str, lines: int, follow: bool) -> None:
    """The end of a log, in words that people read, however its process writes it."""
    tail = shutil.which("tail") or "/usr/bin/tail"
    argv = [tail, "-n", str(lines), *(["-F"] if follow else []), path]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        try:
            for line in process.stdout or ():
                _say(readable(line.rstrip("\n")))
        except (BrokenPipeError, KeyboardInterrupt):
            pass  # nobody reads on
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
