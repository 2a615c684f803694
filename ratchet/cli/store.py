"""`ratchet store`: an operator's commands on the database itself, which replace this process."""

import os
import sys
from typing import Never

import typer

VERBS = {
    "migrate": "Make the store's tables, or bring them to the newest revision (--to another).",
    "check": "Say what is wrong with the store.",
    "vacuum": "Give space back; --forget DAYS first deletes runs that ended longer ago.",
}

store = typer.Typer(no_args_is_help=True, help="The database of runs, where this command can reach it.")


def _run(context: typer.Context) -> Never:
    sys.stdout.flush()
    arguments = ["-m", "ratchet.store", str(context.info_name), *context.args]
    os.execv(sys.executable, [sys.executable, *arguments])


for _verb, _help in VERBS.items():
    _pass_on = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    store.command(_verb, help=_help, context_settings=_pass_on)(_run)
