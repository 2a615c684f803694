"""Sections of a run spec that say who is told of a run: metric sinks and webhooks.

What is told is copied from the store by a process of its own: a sink that is away never holds a run up.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ratchet.spec.secrets import SecretRef


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def _without_credentials(url: str) -> str:
    if "@" in url.partition("://")[2].partition("/")[0]:
        # Not repeated: it may be a password.
        raise ValueError("a URL with a user or password in it: name them as secrets instead")
    return url


HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/]"), AfterValidator(_without_credentials)]


class TensorboardSpec(_Section):
    """TensorBoard event files. Needs no package to be written."""

    folder: str | None = None
    """Where; each run has a folder of its own below it. Left out: `tensorboard` in the state folder."""


class MlflowSpec(_Section):
    """An MLflow run, named like this one. Needs `pip install 'ratchet[mlflow]'` on the machine of the
    stack."""

    tracking_uri: Annotated[
        str, Field(pattern=r"^(https?://[^\s/]|file:///)"), AfterValidator(_without_credentials)
    ]
    """`https://…` of a tracking server, or `file:///…` of a folder."""
    experiment: Annotated[str, Field(min_length=1)] = "ratchet"
    """The experiment, made if there is none."""
    token: SecretRef | None = None
    """A bearer token for the server."""


class WandbSpec(_Section):
    """A Weights & Biases run, named like this one. Needs `pip install 'ratchet[wandb]'` on the machine of the
    stack."""

    project: Annotated[str, Field(min_length=1)] = "ratchet"
    """The project."""
    entity: str | None = None
    """The user or team; left out: the key's own."""
    mode: Literal["offline", "online"] = "offline"
    """`offline`: files that `wandb sync` sends later. `online`: sent as they come, which needs api_key."""
    folder: str | None = None
    """Where the files are; each run has a folder of its own below it. Left out: `wandb` in the state
    folder."""
    api_key: SecretRef | None = None
    """The key of the account, for `online`."""

    @model_validator(mode="after")
    def _with_key(self) -> Self:
        if self.mode == "online" and self.api_key is None:
            raise ValueError("metrics.wandb.mode is online without a key: name one in metrics.wandb.api_key")
        return self


class MetricsSpec(_Section):
    """Where the numbers of steps and evaluations are copied to. A sink is on if its section is there; `{}`
    will do."""

    tensorboard: TensorboardSpec | None = None
    """Event files for TensorBoard; a step that is trained again replaces what the lost one had said."""
    mlflow: MlflowSpec | None = None
    """An MLflow tracking server; a step that is trained again is not written again."""
    wandb: WandbSpec | None = None
    """Weights & Biases; a step that is trained again is not written again."""


class WebhookSpec(_Section):
    """Told of every incident, and if the run fails. Each message is signed, and comes again until it is
    taken: `Idempotency-Key` stays the same."""

    url: HttpUrl | None = None
    """Where messages are posted."""
    url_from: SecretRef | None = None
    """Instead of `url`, for an address that is itself a secret."""
    secret: SecretRef
    """Key of the signature (HMAC with SHA-256) that proves who sent a message."""

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if (self.url is None) == (self.url_from is None):
            raise ValueError("needs one of url and url_from, and not both")
        return self


class NotifySpec(_Section):
    """Who is told when something goes wrong."""

    webhooks: Annotated[tuple[WebhookSpec, ...], Field(max_length=8)] = ()
    """Addresses that incidents are posted to."""


def secrets_of(metrics: MetricsSpec, notify: NotifySpec) -> Iterator[tuple[str, SecretRef]]:
    """Every secret that is named, with its key."""
    if metrics.mlflow and metrics.mlflow.token:
        yield "metrics.mlflow.token", metrics.mlflow.token
    if metrics.wandb and metrics.wandb.api_key:
        yield "metrics.wandb.api_key", metrics.wandb.api_key
    for number, hook in enumerate(notify.webhooks):
        yield f"notify.webhooks.{number}.secret", hook.secret
        if hook.url_from:
            yield f"notify.webhooks.{number}.url_from", hook.url_from


def paths_of(metrics: MetricsSpec) -> Iterator[tuple[str, str]]:
    """Every folder of the stack's machine that a sink writes to, with its key."""
    if metrics.tensorboard and metrics.tensorboard.folder:
        yield "metrics.tensorboard.folder", metrics.tensorboard.folder
    if metrics.wandb and metrics.wandb.folder:
        yield "metrics.wandb.folder", metrics.wandb.folder
    if metrics.mlflow and metrics.mlflow.tracking_uri.startswith("file://"):
        yield "metrics.mlflow.tracking_uri", metrics.mlflow.tracking_uri.removeprefix("file://")
