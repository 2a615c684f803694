"""Sinks and webhooks in a spec: secrets are only named, and what is wrong says how to put it right."""

from pathlib import Path
from typing import Any

import pytest

from api.roots import check_roots
from ratchet.sinks import installed
from ratchet.spec.loading import parse_spec, spec_from_mapping
from ratchet.spec.problems import InvalidSpec
from ratchet.spec.run_spec import RunSpec

SPEC: dict[str, Any] = {
    "name": "tiny-addition",
    "policy": {"model": "tiny"},
    "generation": {"max_new_tokens": 5},
    "grpo": {"num_prompts_per_step": 4, "num_generations_per_prompt": 8, "max_num_steps": 4},
    "environment": {"name": "arithmetic"},
}
LITERAL = "sk-live-51h2Kq"


def spec(**sections: object) -> RunSpec:
    return spec_from_mapping({**SPEC, **sections})


def hooked(**hook: object) -> RunSpec:
    return spec(notify={"webhooks": [{"url": "https://pager.example.org/x", **hook}]})


@pytest.mark.parametrize("written", [LITERAL, {"env": LITERAL}, {"file": LITERAL}, [LITERAL], 5])
def test_a_literal_secret_is_refused_and_not_repeated(written: object) -> None:
    with pytest.raises(InvalidSpec) as refused:
        hooked(secret=written)
    said = str(refused.value)
    assert said.startswith("notify.webhooks.0.secret: ")
    assert "write {env: NAME} or {file: /path}" in said
    assert LITERAL not in said


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"metrics": {"wandb": {"mode": "online"}}}, "metrics.wandb.mode: online without a key (name one in"),
        ({"metrics": {"wandb": {"projet": "x"}}}, "did you mean metrics.wandb.project?"),
        ({"metrics": {"wandb": {"mode": "on"}}}, 'metrics.wandb.mode: "on"; allowed: offline | online'),
        ({"metrics": {"mlflow": {}}}, "metrics.mlflow.tracking_uri: missing"),
        (
            {"metrics": {"mlflow": {"tracking_uri": f"https://ada:{LITERAL}@x.org"}}},
            "a user or password in it",
        ),
        ({"notify": {"webhooks": [{"secret": {"env": "KEY"}}]}}, "needs one of url and url_from"),
    ],
)
def test_what_is_wrong_is_named_with_the_fix(sections: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        spec(**sections)
    assert words in str(refused.value)
    assert LITERAL not in str(refused.value)


def test_a_sink_is_turned_on_by_one_override() -> None:
    text = "\n".join(f"{key}: {value}" for key, value in SPEC.items())
    assert parse_spec(text, ["metrics.wandb.project=arithmetic"]).metrics.wandb is not None


def test_files_and_variables_are_named_only_where_that_is_allowed(tmp_path: Path) -> None:
    outside = spec(
        metrics={"tensorboard": {"folder": "/srv/tb"}, "mlflow": {"tracking_uri": "file:///srv/ml"}},
        notify={
            "webhooks": [
                {"url": "https://x.org", "secret": {"file": "/etc/shadow"}},
                {"url_from": {"env": "RATCHET_SECRET_URL"}, "secret": {"env": "AWS_SECRET_ACCESS_KEY"}},
            ]
        },
    )
    check_roots(outside, None)
    with pytest.raises(InvalidSpec) as refused:
        check_roots(outside, (tmp_path,))
    assert [problem.key for problem in refused.value.problems] == [
        "metrics.tensorboard.folder",
        "metrics.mlflow.tracking_uri",
        "notify.webhooks.0.secret.file",
        "notify.webhooks.1.secret.env",
    ]
    check_roots(hooked(secret={"file": str(tmp_path / "key")}), (tmp_path,))


def test_a_missing_package_is_told_at_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda name: None)
    installed.check_installed(spec(metrics={"tensorboard": {}}))
    with pytest.raises(InvalidSpec, match=r"metrics.wandb: .* \(pip install 'ratchet\[wandb\]'"):
        installed.check_installed(spec(metrics={"wandb": {}}))
