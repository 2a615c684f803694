"""What orchestration adds to a step: synchronous steps whose engines do nothing, over the embedded stack.

The overhead of a step is the time from its start to the start of the next one, less the seconds spent in
engines: dispatch by Temporal, the wire to the conductor, lines to the engines, journal, data plane, records.
"""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.report import Report, arguments, percentile
from benchmarks.stack import Stack, embedded_stack
from benchmarks.timeline import Part, step_parts
from ratchet.spec.run_spec import (
    CheckpointSpec,
    EnvironmentSpec,
    EvaluationSpec,
    GenerationSpec,
    GrpoSpec,
    PolicySpec,
    RunSpec,
    RuntimeSpec,
)
from ratchet.spec.views import StepView

STEPS = 200
QUICK_STEPS = 40
WARM_UP = 3
"""Steps left out at the start: first calls import modules and open files."""
RUN = "orchestration"
LONGEST_STEP = 2.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, help=f"measured steps (default {STEPS}, quick {QUICK_STEPS})")
    parser.add_argument(
        "--data-plane", default="simple", help="data_plane.backend of the run (default simple)"
    )
    options = parser.parse_args()
    steps: int = options.steps or (QUICK_STEPS if options.quick else STEPS)
    report = Report(options.json_only)
    with tempfile.TemporaryDirectory(prefix="ratchet-null-") as folder, embedded_stack(Path(folder)) as stack:
        report.progress(f"{steps} steps that do nothing …")
        spec = null_spec(write_null_model(Path(folder) / "null"), steps)
        data_plane = spec.data_plane.model_copy(update={"backend": options.data_plane})
        measured, parts, longest = measure(stack, spec.model_copy(update={"data_plane": data_plane}))
    overheads = step_overheads(measured)[WARM_UP:]
    p50, p95 = percentile(overheads, 0.5), percentile(overheads, 0.95)
    mean = sum(overheads) / len(overheads)
    rows = [
        ["a step", f"{p50:.1f}", f"{p95:.1f}"],
        *([f"  {part.name}", f"{part.p50_ms:.1f}", f"{part.p95_ms:.1f}"] for part in parts),
    ]
    report.progress(f"its longest history has {longest} events")
    report.publish(
        f"Overhead in ms, over {len(overheads)} steps (mean {mean:.1f})",
        ["", "p50", "p95"],
        rows,
        {
            "benchmark": "orchestration",
            "overhead_ms_p50": round(p50, 2),
            "overhead_ms_p95": round(p95, 2),
            "overhead_ms_mean": round(mean, 2),
            "steps": len(overheads),
            "longest_history_events": longest,
            "parts": {part.name: round(part.p50_ms, 2) for part in parts},
        },
    )


def measure(stack: Stack, spec: RunSpec) -> tuple[list[StepView], list[Part], int]:
    """Run it to its end: its steps, how long each kind of operation took to be scheduled and done, and the
    events in its longest history."""
    stack.api.launch(spec.model_dump(mode="json", exclude_unset=True), RUN)
    stack.wait_end(RUN, 60.0 + LONGEST_STEP * spec.grpo.max_num_steps)
    parts, longest = asyncio.run(step_parts(stack.home, RUN))
    return stack.api.steps(RUN), parts, longest


def step_overheads(steps: Sequence[StepView]) -> list[float]:
    """Milliseconds from each step's start to the next one's, less its engine seconds."""
    return [
        1000.0
        * (
            (after.started_at - step.started_at).total_seconds()
            - (step.rollout_s + step.train_s + step.refit_s)
        )
        for step, after in pairwise(steps)
    ]


def null_spec(model: Path, steps: int) -> RunSpec:
    """As many steps as give `steps` measured periods."""
    return RunSpec(
        name="orchestration",
        policy=PolicySpec(
            model=str(model),
            backend="benchmarks.null_engines:NullTrainer",
            train_micro_batch_size=1,
            max_total_sequence_length=32,
        ),
        generation=GenerationSpec(backend="benchmarks.null_engines:NullGenerator", max_new_tokens=1),
        grpo=GrpoSpec(
            num_prompts_per_step=1, num_generations_per_prompt=2, max_num_steps=steps + WARM_UP + 1
        ),
        environment=EnvironmentSpec(name="arithmetic"),
        evaluation=EvaluationSpec(num_problems=0),
        checkpointing=CheckpointSpec(every=0, hf_export="never"),
        runtime=RuntimeSpec(threads=1),
    )


def write_null_model(folder: Path) -> Path:
    """A folder that looks like a causal language model from outside; the engines never look inside."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["NullForCausalLM"]}))
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).touch()
    return folder


if __name__ == "__main__":
    main()
