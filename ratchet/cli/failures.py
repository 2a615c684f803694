"""How a command fails: one line per problem on stderr, and an exit code that scripts can rely on."""

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from ratchet.spec.faults import RatchetError


class ExitCode(IntEnum):
    OK = 0
    RUN_FAILED = 1
    BAD_INPUT = 2
    UNAVAILABLE = 3


EPILOG = "Exit codes: 0 fine, 1 the run failed, 2 bad input, 3 the stack does not answer."


class Failing(TyperGroup):
    """A group of commands whose errors are printed, never thrown at the person as a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            from ratchet.spec.faults import RatchetError  # here, so that --help need not wait for pydantic

            if not isinstance(error, RatchetError):
                raise
            for line in getattr(error, "problems", (error,)):
                typer.echo(f"{typer.style('error:', fg='red', bold=True)} {line}", err=True)
            raise typer.Exit(_exit_code(error)) from None


def _exit_code(error: "RatchetError") -> ExitCode:
    from ratchet.cli.client import Refused
    from ratchet.spec.faults import SpecError, Unavailable

    if isinstance(error, Unavailable):
        return ExitCode.UNAVAILABLE
    return ExitCode.BAD_INPUT if isinstance(error, SpecError | Refused) else ExitCode.RUN_FAILED
