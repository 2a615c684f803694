import subprocess
import sys

import pytest

from ratchet.policy.registry import create_trainer
from ratchet.policy.torch_trainer import TorchTrainer
from ratchet.spec.faults import SpecError


def with_backend(make_spec, backend):
    return make_spec(policy={"model": "tiny", "train_micro_batch_size": 4, "backend": backend})


@pytest.mark.parametrize("backend", ["torch", "ratchet.policy.torch_trainer:TorchTrainer"])
def test_a_backend_by_name_or_by_class(make_spec, backend):
    assert isinstance(create_trainer(with_backend(make_spec, backend)), TorchTrainer)


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("tensorflow", ['"tensorflow"', "torch, module:Class"]),
        ("", ['""', "torch, module:Class"]),
        ("torch:", ['"torch:"', "torch, module:Class"]),
        ("no_such_package.trainer:Trainer", ["needs the Python module no_such_package", "pip install"]),
        ("ratchet.policy.registry:Trainer", ["ratchet.policy.registry has no class Trainer"]),
    ],
)
def test_an_unknown_backend_is_refused_by_key(make_spec, backend, words):
    with pytest.raises(SpecError, match=r"policy\.backend: ") as caught:
        create_trainer(with_backend(make_spec, backend))
    for word in words:
        assert word in str(caught.value)


def test_a_missing_dependency_says_what_to_install(make_spec, monkeypatch, tmp_path):
    (tmp_path / "needs_more.py").write_text("import megatron_that_is_not_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError, match="pip install megatron_that_is_not_here"):
        create_trainer(with_backend(make_spec, "needs_more:Trainer"))


def test_the_registry_itself_needs_no_torch():
    code = "import sys, ratchet.policy.registry; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
