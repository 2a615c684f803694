"""The engines that a run spec may name."""

from ratchet.spec.registry import Registry

TRAINERS = Registry(
    "policy.backend", "ratchet.trainers", {"torch": "ratchet.policy.torch_trainer:TorchTrainer"}
)
GENERATORS = Registry("generation.backend", "ratchet.generators", {"hf": "ratchet.generation.hf:HfGenerator"})
