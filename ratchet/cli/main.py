"""Entry point of the `ratchet` command. Whatever is heavy is imported inside commands: help is instant."""

import typer

from ratchet.cli import stack
from ratchet.cli.failures import EPILOG, Failing
from ratchet.cli.rebuilding import rebuild
from ratchet.cli.runs import runs

app = typer.Typer(
    cls=Failing,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="RL post-training as durable workflows. Start with `ratchet up`, then "
    "`ratchet run launch recipes/tiny-addition.yaml --wait`.",
    epilog=EPILOG,
)
stack.add_to(app)
app.add_typer(runs, name="run", rich_help_panel="Runs")
app.add_typer(rebuild, name="rebuild", rich_help_panel="Runs")

if __name__ == "__main__":
    app()
