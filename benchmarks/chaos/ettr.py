"""Effective training time: the share of a run's time that it would also have needed undisturbed.

`ettr_at_60s_steps` asks what the measured recoveries mean for a run whose steps take a minute (40 s of
rollout, 20 s of training), with a checkpoint every 2 steps, and 10 failures in 100 steps: 7 of control
processes, one trainer, one generator, one head. Each costs what it was measured to cost here, and what has to
be done again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STEPS = 100
ROLLOUT_S, TRAIN_S = 40.0, 20.0
STEP_S = ROLLOUT_S + TRAIN_S
CHECKPOINT_EVERY = 2
FAILURES = {"control": 7, "trainer": 1, "generator": 1, "head": 1}

RETRAINED_S = (CHECKPOINT_EVERY - 1) / 2 * TRAIN_S + TRAIN_S / STEP_S * TRAIN_S / 2
"""Mean training that is lost with a trainer: the steps since the manifest, each as likely as the other to be
the one that fails, and half of the one under way, if one is."""

ROLLED_OUT_AGAIN_S = ROLLOUT_S / STEP_S * ROLLOUT_S / 2
"""Mean rollout that is lost with a generator: half of the one under way, if one is, as if none of its groups
were finished. Finished ones are in the journal: this is the most it can be."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What one failure costs, in seconds."""

    recovery: float
    retrained: float = 0.0
    rolled_out_again: float = 0.0

    @property
    def seconds(self) -> float:
        return self.recovery + self.retrained + self.rolled_out_again


def losses(recovery: Mapping[str, float]) -> dict[str, Loss]:
    """By kind of failure, from measured recoveries in seconds."""
    return {
        "control": Loss(recovery["control"]),
        "trainer": Loss(recovery["trainer"], RETRAINED_S, ROLLED_OUT_AGAIN_S),
        "generator": Loss(recovery["generator"], 0.0, ROLLED_OUT_AGAIN_S),
        "head": Loss(recovery["head"], RETRAINED_S, ROLLED_OUT_AGAIN_S),
    }


def at_60s_steps(recovery: Mapping[str, float]) -> float:
    """Of those 100 steps."""
    lost = sum(FAILURES[kind] * loss.seconds for kind, loss in losses(recovery).items())
    return STEPS * STEP_S / (STEPS * STEP_S + lost)


def formula(recovery: Mapping[str, float]) -> str:
    """How it comes to be, for people."""
    terms = " + ".join(
        f"{FAILURES[kind]} {kind} × ({one.recovery:.1f} + {one.retrained:.1f} + {one.rolled_out_again:.1f})"
        for kind, one in losses(recovery).items()
    )
    return (
        f"{STEPS} × {STEP_S:.0f} s / ({STEPS} × {STEP_S:.0f} s + {terms}) = {at_60s_steps(recovery):.3f}, "
        "where each failure costs its recovery, the training and the rollout that are done again"
    )


def of_runs(fastest_s: float, disturbed_s: Sequence[float]) -> float:
    """Of runs that were struck, next to the fastest there was, which nobody held up."""
    return fastest_s * len(disturbed_s) / sum(disturbed_s)
