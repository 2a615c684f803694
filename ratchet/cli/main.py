"""Entry point of the `ratchet` command. Whatever is heavy is imported inside commands: help is instant."""

from typing import Annotated

import typer

from ratchet.cli import stack
from ratchet.cli.asked import ASKED, Asked
from ratchet.cli.failures import EPILOG, Failing
from ratchet.cli.rebuilding import rebuild
from ratchet.cli.runs import runs
from ratchet.cli.store import store
from ratchet.cli.tokens import tokens

app = typer.Typer(
    cls=Failing,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="RL post-training as durable workflows. Start with `ratchet up`, then "
    "`ratchet run launch recipes/tiny-addition.yaml --wait`.",
    epilog=EPILOG,
)


@app.callback()
def _whom(
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The API to ask; else RATCHET_URL, or this machine's.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Who asks; RATCHET_TOKEN shows less to others.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A table of ~/.config/ratchet/profiles.toml; else RATCHET_PROFILE."
        ),
    ] = None,
) -> None:
    ASKED.set(Asked(url, token, profile))


stack.add_to(app)
app.add_typer(runs, name="run", rich_help_panel="Runs")
app.add_typer(rebuild, name="rebuild", rich_help_panel="Runs")
app.add_typer(store, name="store", rich_help_panel="Stack")
app.add_typer(tokens, name="token", rich_help_panel="Access")

if __name__ == "__main__":
    app()
