"""`python -m ratchet.store`, which `ratchet store` runs: an operator's commands on the database itself."""

import argparse
import sys
import time

from sqlalchemy import Engine

from ratchet.spec import deadlines
from ratchet.spec.faults import RatchetError
from ratchet.spec.home import Home
from ratchet.store.engine import open_engine, where
from ratchet.store.maintenance import check, forget, vacuum
from ratchet.store.migrate import HEAD, migrate, revisions

DAY_S = 86_400.0


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0; 1 if the store is not sound or cannot be reached."""
    asked = _parser().parse_args(arguments)
    try:
        engine = open_engine(Home().store_url, deadlines.STORE_MIGRATE, deadlines.STORE_MAINTENANCE)
        try:
            return _carry_out(asked, engine)
        finally:
            engine.dispose()
    except RatchetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _carry_out(asked: argparse.Namespace, engine: Engine) -> int:
    match asked.command:
        case "migrate":
            migrate(engine, asked.to)
            print(f"store {where(engine)} is at revision {revisions(engine)[0]}")
        case "check":
            problems = check(engine)
            print("\n".join(problems) or f"store {where(engine)} is sound")
            return 1 if problems else 0
        case _:
            if asked.forget is not None:
                runs = forget(engine, time.time() - asked.forget * DAY_S)
                print(f"forgot {len(runs)} runs" + (f": {', '.join(runs)}" if runs else ""))
            vacuum(engine)
            print(f"store {where(engine)} is vacuumed")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ratchet store",
        description="The database of runs: RATCHET_STORE, or store.db in RATCHET_HOME.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    upgrade = commands.add_parser("migrate", help="make it, or bring it to a revision")
    upgrade.add_argument(
        "--to", default=HEAD, metavar="REVISION", help="an older one loses what it has no place for"
    )
    commands.add_parser("check", help="say what is wrong with it")
    tidy = commands.add_parser("vacuum", help="give space back")
    tidy.add_argument(
        "--forget",
        type=float,
        metavar="DAYS",
        help="first delete runs that ended longer ago, with their rows",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
