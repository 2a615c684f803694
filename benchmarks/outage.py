"""What an outage of Postgres costs a run: `python -m benchmarks.outage`.

The server is killed (SIGKILL, every process of it) in the middle of a run and started again 20 s later. The
run is a real one, over a real Temporal server and a real store; only its engines follow a script.

JSON: `away_s`, `steps` of the run, `steps_while_away` (trained, not yet on record), `caught_up_s` (from the
server's start to the first new step on record), `missing` and `doubled` (rows and notices that are not there,
or there twice: 0), `again` (operations that had their effect twice: 0).
"""

import asyncio
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from temporalio.client import Client

from benchmarks.report import Report, arguments
from ratchet.spec.faults import Unavailable
from ratchet.spec.ids import OpKind
from ratchet.spec.run_spec import RunSpec
from workers.testing.postgres import PostgresServer
from workers.testing.scripted import ScriptedStack, scripted_stack
from workers.testing.servers import dev_server

AWAY_S, QUICK_AWAY_S = 20.0, 4.0
STEPS = 120
BEFORE = 4
"""Steps on record, at least, when the server is killed."""
LOOK_EVERY = 0.05
WITHIN_S = 120.0


def spec(steps: int) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "outage",
            "policy": {"model": "tiny", "train_micro_batch_size": 2},
            "generation": {"max_new_tokens": 4},
            "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": steps},
            "environment": {"name": "arithmetic"},
            "evaluation": {"num_problems": 0},
        }
    )


async def measure(client: Client, server: PostgresServer, folder: Path, away_s: float) -> dict[str, Any]:
    """Kill the server under a run for so many seconds, and look what became of it."""
    run = f"outage-{uuid.uuid4().hex[:8]}"
    database = server.new_database()
    async with scripted_stack(client, folder, store_url=server.url(database)) as stack:
        ended = asyncio.create_task((await stack.start(spec(STEPS), run)).result())
        await _until(lambda: _on_record(stack, run) >= BEFORE)
        await asyncio.to_thread(server.kill)
        before = _trained(stack)
        await asyncio.sleep(away_s)
        away = _trained(stack) - before
        await asyncio.to_thread(server.start)
        back, known = time.monotonic(), _on_record(stack, run)
        await _until(lambda: _on_record(stack, run) > known)
        caught_up = time.monotonic() - back
        await asyncio.wait_for(ended, WITHIN_S)
        return {
            "away_s": away_s,
            "steps": STEPS,
            "steps_while_away": away,
            "caught_up_s": round(caught_up, 2),
            **_audit(stack, run),
        }


def _on_record(stack: ScriptedStack, run: str) -> int:
    try:
        record = stack.store.get_run(run)
    except Unavailable:
        return 0
    return 0 if record is None else record.step


def _trained(stack: ScriptedStack) -> int:
    return sum(operation.endswith(OpKind.TRAIN_STEP) for operation in stack.script.carried_out)


def _audit(stack: ScriptedStack, run: str) -> dict[str, int]:
    """What is missing or doubled, of rows, notices and operations."""
    rows = [row.step for row in stack.store.steps(run)]
    notices = stack.store.notices(run, after=0, limit=100_000)
    told = [int(str(notice.data["step"])) for notice in notices if notice.kind == "step"]
    done = stack.script.carried_out
    return {
        "missing": sum(len({*range(1, STEPS + 1)} - {*found}) for found in (rows, told)),
        "doubled": sum(len(found) - len({*found}) for found in (rows, told)),
        "again": len(done) - len({*done}),
    }


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(LOOK_EVERY)


async def _alone(away_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ratchet-outage-") as folder, PostgresServer() as server:
        async with dev_server() as temporal:
            return await measure(temporal.client, server, Path(folder), away_s)


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report(options.json_only)
    away_s = QUICK_AWAY_S if options.quick else AWAY_S
    report.progress(f"a run whose store is away for {away_s:.0f} s …")
    answer = asyncio.run(_alone(away_s))
    rows = [[name.replace("_", " "), str(value)] for name, value in answer.items()]
    report.publish("A run over an outage of its store", ["", ""], rows, {"benchmark": "outage", **answer})


if __name__ == "__main__":
    main()
