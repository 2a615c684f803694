"""`ratchet up` and its kin: the supervisor's own commands, which replace this process."""

import os
import sys
from typing import Never

import typer

VERBS = {
    "up": "Start Temporal, the workers, the API and Ray. --detach keeps them in the background.",
    "down": "Stop everything that `ratchet up` started. Runs and checkpoints stay.",
    "status": "What of the stack is up, and where.",
    "logs": "Show the log of a part of the stack, like `ratchet logs api`.",
    "doctor": "Check what a stack needs of this machine.",
}

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_to(app: typer.Typer) -> None:
    """One command per verb; its options are the supervisor's, which documents them under --help."""
    for verb, help_text in VERBS.items():
        app.command(verb, help=help_text, context_settings=_PASS_ON, rich_help_panel="Stack")(run_supervisor)


def run_supervisor(context: typer.Context) -> Never:
    arguments = ["-m", "workers.supervisor", str(context.info_name), *context.args]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *arguments])
