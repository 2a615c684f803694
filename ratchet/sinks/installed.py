"""Whether the packages that sinks need are there: asked at launch, and light."""

import importlib.util

from ratchet.spec.problems import InvalidSpec, SpecProblem
from ratchet.spec.run_spec import RunSpec

_PACKAGES = {"mlflow": "MLflow", "wandb": "Weights & Biases"}
"""By section of `metrics`, which is also the package and the extra."""


def check_installed(spec: RunSpec) -> None:
    """Raises InvalidSpec, with the command that fixes it, for a sink whose package is missing here."""
    problems = [
        SpecProblem(
            key=f"metrics.{kind}",
            found=f"{title} is not installed here",
            hint=f"pip install 'ratchet[{kind}]', or leave it out",
        )
        for kind, title in _PACKAGES.items()
        if getattr(spec.metrics, kind) is not None and importlib.util.find_spec(kind) is None
    ]
    if problems:
        raise InvalidSpec(problems)
