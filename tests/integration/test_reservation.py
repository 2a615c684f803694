"""GPUs of sessions, in a Ray cluster that says it has some (none is computed on)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SESSIONS = """
import subprocess
import sys
from pathlib import Path
import ray
from ratchet.spec.faults import SpecError
from ratchet.spec.ids import RAY_NAMESPACE
from ratchet.spec.loading import load_spec
from workers.actors.base import SessionConfig, get_or_create

REAP = "import sys; from workers.reap import reap; print(reap(sys.argv[1], lambda _: True, sys.argv[2]))"

@ray.remote
class Engine:
    def __init__(self, config):
        pass

    def gpus(self):
        return sorted(map(str, ray.get_gpu_ids()))

def config(run, **placement):
    spec = base.model_copy(update={"placement": base.placement.model_copy(update=placement)})
    return SessionConfig(run=run, session=1, spec=spec, home=sys.argv[1])

def engines(config):
    return [get_or_create(Engine, config, role) for role in ("trainer", "generator")]

def gpus(actors):
    return ray.get([actor.gpus.remote() for actor in actors], timeout=30)

base = load_spec(Path("recipes/tiny-addition.yaml"))
context = ray.init(num_gpus=2, num_cpus=2, namespace=RAY_NAMESPACE, include_dashboard=False)

first, second = (engines(config(run, kind="colocated", gpus=1)) for run in "ab")
(trainer, generator), (others_trainer, others_generator) = gpus(first), gpus(second)
assert trainer == generator and len(trainer) == 1, (trainer, generator)
assert others_trainer == others_generator != trainer, (others_trainer, others_generator)

waiting = engines(config("c", kind="split", gpus=1))
done, _ = ray.wait([actor.gpus.remote() for actor in waiting], num_returns=1, timeout=2)
assert not done, "both GPUs are taken"
for run in "ab":
    reaped = subprocess.check_output([sys.executable, "-c", REAP, run, context.address_info["address"]])
    assert f"reservation-{run}-1-0" in reaped.decode(), reaped
trainer, generator = gpus(waiting)
assert sorted(trainer + generator) == ["0", "1"], (trainer, generator)

assert gpus(engines(config("d"))) == [[], []], "by default nothing is reserved"

ray.shutdown()
ray.init(num_gpus=1, num_cpus=1, namespace=RAY_NAMESPACE, include_dashboard=False)
try:
    engines(config("e", kind="split", gpus=1))
except SpecError as error:
    assert "a split session needs 2 GPUs, but the Ray cluster has 1" in str(error), error
else:
    raise AssertionError("a session that can never start is refused")
"""


def test_a_session_gets_its_gpus_all_at_once_and_alone(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SESSIONS, str(tmp_path)]
    # Tests hide the GPUs of this machine; a cluster that only claims to have some has to see none hidden.
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
