"""What asynchronous rollouts save when every response waits for something far away.

The tiny recipe, its answers checked by a simulated remote tool (benchmarks.remote_tool: latencies are
log-normal, median 0.5 s, 99th percentile 5 s), so that the machine's cores are not what is short. The
synchronous run waits for the slowest response of every batch; the asynchronous one, with as many prompts
in flight, trains on what is there. Same stack, steps, prompts a step and seeds.

The time of a run is that from the beginning of its first step to the end of its last. JSON: `speedup`
(synchronous over asynchronous seconds), `reward_sync`, `reward_async` (held-out accuracy at the end,
means over the seeds), `idle_train` (share of the asynchronous run in which the trainer waited),
`idle_rollout` (share of its permits that nothing was in flight for), `staleness_max`.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.chaos.history import read_history
from benchmarks.report import Report, arguments
from benchmarks.stack import Stack, embedded_stack
from ratchet.spec.home import Home
from ratchet.spec.loading import load_spec
from ratchet.spec.receipts import RolloutReceipt
from ratchet.spec.run_spec import RunSpec
from ratchet.store import Store

RECIPE = Path(__file__).parent.parent / "recipes" / "tiny-addition.yaml"
SEEDS, QUICK_SEEDS = (1, 2, 3), (1,)
STEPS, QUICK_STEPS = 40, 15
STALENESS = 2
WITHIN = 1200.0
COMMON = (
    "environment.name=benchmarks.remote_tool:RemoteTool",
    "generation.deterministic=false",
    "evaluation.at_start=false",
    "evaluation.num_problems=128",
    "checkpointing.every=0",
    "checkpointing.hf_export=never",
    "data_plane.backend=simple",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run."""

    seconds: float
    reward: float
    idle_train: float
    idle_rollout: float
    staleness_max: float


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report(options.json_only)
    steps = QUICK_STEPS if options.quick else STEPS
    pairs: list[tuple[Outcome, Outcome]] = []
    with embedded_stack(Home().models) as stack:
        for seed in QUICK_SEEDS if options.quick else SEEDS:
            plain = load_spec(RECIPE, [*COMMON, f"seed={seed}", f"grpo.max_num_steps={steps}"])
            prompts = plain.grpo.num_prompts_per_step
            ahead = load_spec(
                RECIPE,
                [
                    *COMMON,
                    f"seed={seed}",
                    f"grpo.max_num_steps={steps}",
                    "asynchronous.sampler=ready_first",
                    "asynchronous.refit=keep",
                    f"asynchronous.max_staleness={STALENESS}",
                    f"asynchronous.max_inflight_groups={prompts}",
                ],
            )
            pairs.append((run(stack, plain, f"sync-{seed}"), run(stack, ahead, f"async-{seed}")))
            report.progress(f"seed {seed}: {pairs[-1][0].seconds:.0f} s and {pairs[-1][1].seconds:.0f} s")
    synchronous, asynchronous = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    speedup = sum(one.seconds for one in synchronous) / sum(one.seconds for one in asynchronous)
    report.publish(
        f"{steps} steps, {len(pairs)} seeds: {speedup:.2f} times as fast",
        ["", "seconds", "reward", "trainer idle", "permits idle", "staleness"],
        [
            _row("synchronous", synchronous),
            _row("asynchronous", asynchronous),
        ],
        {
            "benchmark": "async_speedup",
            "speedup": round(speedup, 3),
            "reward_sync": round(fmean(one.reward for one in synchronous), 4),
            "reward_async": round(fmean(one.reward for one in asynchronous), 4),
            "idle_train": round(fmean(one.idle_train for one in asynchronous), 3),
            "idle_rollout": round(fmean(one.idle_rollout for one in asynchronous), 3),
            "staleness_max": max(one.staleness_max for one in asynchronous),
            "seeds": len(pairs),
            "steps": steps,
        },
    )


def run(stack: Stack, spec: RunSpec, name: str) -> Outcome:
    stack.api.launch(spec.model_dump(mode="json", exclude_unset=True), name)
    stack.wait_end(name, WITHIN)
    steps = stack.api.steps(name)
    seconds = (steps[-1].finished_at - steps[0].started_at).total_seconds()
    history = asyncio.run(read_history(stack.home, name))
    in_flight = sum(
        done.receipt.inflight_s for done in history.operations if isinstance(done.receipt, RolloutReceipt)
    )
    permits = spec.asynchronous.inflight(spec.grpo.num_prompts_per_step) if spec.asynchronous else 1
    (evaluation,) = Store(stack.home.store_url).evaluations(name)
    return Outcome(
        seconds=seconds,
        reward=evaluation.accuracy or 0.0,
        idle_train=1.0 - sum(step.train_s for step in steps) / seconds,
        idle_rollout=1.0 - in_flight / (permits * seconds),
        staleness_max=max(step.metrics.get("staleness_max") or 0.0 for step in steps),
    )


def _row(name: str, outcomes: list[Outcome]) -> list[str]:
    return [
        name,
        f"{sum(one.seconds for one in outcomes):.0f}",
        f"{fmean(one.reward for one in outcomes):.3f}",
        f"{fmean(one.idle_train for one in outcomes):.0%}",
        f"{fmean(one.idle_rollout for one in outcomes):.0%}" if name == "asynchronous" else "",
        f"{max(one.staleness_max for one in outcomes):.0f}",
    ]


if __name__ == "__main__":
    main()
