"""Which sinks a run has."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.sinks.follow import Sink
from ratchet.sinks.mlflow import MlflowSink
from ratchet.sinks.secret_values import value_of
from ratchet.sinks.tensorboard import TensorboardSink
from ratchet.sinks.wandb import WandbSink
from ratchet.sinks.webhooks import WebhookSink
from ratchet.spec.home import Home
from ratchet.spec.reporting import MetricsSpec, NotifySpec, WebhookSpec
from ratchet.spec.secrets import SecretRef
from ratchet.store import RunRecord


@dataclass(frozen=True, slots=True)
class Named:
    """A sink that is to be made."""

    name: str
    """Unique within the run: tensorboard, mlflow, wandb, webhook-0, …"""
    kind: str
    make: Callable[[], Sink]


def sinks_of(record: RunRecord, home: Home) -> list[Named]:
    """Those that a run's spec names. An old spec may not parse any more; these sections of it do."""
    metrics = MetricsSpec.model_validate(record.spec.get("metrics") or {})
    notify = NotifySpec.model_validate(record.spec.get("notify") or {})
    return [*_metric_sinks(record, metrics, home), *_webhooks(record.id, notify, home)]


def _metric_sinks(record: RunRecord, metrics: MetricsSpec, home: Home) -> Iterator[Named]:
    run = record.id
    if (tensorboard := metrics.tensorboard) is not None:
        folder = _below(home, tensorboard.folder, "tensorboard", run)
        yield Named("tensorboard", "tensorboard", lambda: TensorboardSink(folder))
    if (mlflow := metrics.mlflow) is not None:
        yield Named(
            "mlflow",
            "mlflow",
            lambda: MlflowSink(mlflow, run, _value(mlflow.token, "metrics.mlflow.token")),
        )
    if (wandb := metrics.wandb) is not None:
        place = _below(home, wandb.folder, "wandb", run)
        yield Named(
            "wandb",
            "wandb",
            lambda: WandbSink(
                wandb, run, place, _value(wandb.api_key, "metrics.wandb.api_key"), _config(record.spec)
            ),
        )


def _webhooks(run: str, notify: NotifySpec, home: Home) -> Iterator[Named]:
    for number, hook in enumerate(notify.webhooks):
        yield Named(f"webhook-{number}", "webhook", _webhook(run, number, hook, home))


def _webhook(run: str, number: int, hook: WebhookSpec, home: Home) -> Callable[[], Sink]:
    def make() -> Sink:
        key = f"notify.webhooks.{number}"
        url = value_of(hook.url_from, f"{key}.url_from") if hook.url_from else str(hook.url)
        secret = value_of(hook.secret, f"{key}.secret")
        return WebhookSink(f"webhook {number} of {run}", url, secret, home.sinks / run)

    return make


def _below(home: Home, folder: str | None, kind: str, run: str) -> Path:
    return (Path(folder).expanduser() if folder else home.root / kind) / run


def _value(secret: SecretRef | None, key: str) -> str | None:
    return None if secret is None else value_of(secret, key)


def _config(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec, without who is told of the run: what the experiment is."""
    return {key: value for key, value in spec.items() if key not in ("metrics", "notify")}
