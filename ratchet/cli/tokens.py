"""`ratchet token VERB`: who may use the API, and as what."""

import os
import sys
from typing import Annotated

import typer

from ratchet.cli.failures import EPILOG, Failing
from ratchet.cli.runs import AsJson

tokens = typer.Typer(
    cls=Failing,
    no_args_is_help=True,
    help="Give tokens for the API to people and programs, and take them back.",
    epilog=EPILOG,
)

ROLES = "viewer looks, operator also launches and steers, admin also gives tokens and rebuilds."


@tokens.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what it is for.")],
    role: Annotated[str, typer.Option(help=ROLES)] = "operator",
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Make an admin's token straight in this machine's store: the first one."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it: this once, since only a digest of it is kept."""
    if offline:
        if role != "admin":
            raise typer.BadParameter("only an admin's token is made offline: --role admin")
        arguments = ["-m", "api", "--first-token", name]
        os.execv(sys.executable, [sys.executable, *arguments])
    from ratchet.cli.client import Api

    with Api() as api:
        made = api.create_token(name, role)
    if as_json:
        return typer.echo(made.model_dump_json())
    typer.echo(made.token)
    typer.echo(
        typer.style(f"{made.id} is {made.name}'s, {made.role}; next: export RATCHET_TOKEN=…", dim=True),
        err=True,
    )


@tokens.command("ls")
def list_tokens(as_json: AsJson = False) -> None:
    """List tokens, revoked ones too."""
    from ratchet.cli.client import Api

    with Api() as api:
        found = api.tokens()
    if as_json:
        return typer.echo(found.model_dump_json())
    if not found.tokens:
        typer.echo("no tokens yet: the API answers on loopback only")
    for token in found.tokens:
        ended = f"  revoked {token.revoked_at:%Y-%m-%d %H:%M}" if token.revoked_at else ""
        typer.echo(f"{token.id}  {token.role:<8}  {token.created_at:%Y-%m-%d %H:%M}  {token.name}{ended}")


@tokens.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="As `ratchet token ls` shows it.")],
    as_json: AsJson = False,
) -> None:
    """Take a token back: from this moment on it opens nothing."""
    from ratchet.cli.client import Api

    with Api() as api:
        revoked = api.revoke_token(token)
    typer.echo(revoked.model_dump_json() if as_json else f"{revoked.id} ({revoked.name}) is revoked")
