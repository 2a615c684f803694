"""What a person does on an ordinary day, in a browser, on runs that really run."""

import asyncio
import uuid
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from playwright.async_api import Page, expect

from ratchet.environments.registry import create_environment
from ratchet.journal.writer import JournalWriter
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec.home import Home
from ratchet.spec.ids import OpKind, WeightVersion
from ratchet.spec.run_spec import RunSpec
from workers.testing.browser import ServedApi, serving
from workers.testing.scripted import ScriptedStack

pytestmark = pytest.mark.browser

STEPS = 4
SPEC = RunSpec.model_validate(
    {
        "name": "scripted",
        "policy": {"model": "tiny", "train_micro_batch_size": 2},
        "generation": {"max_new_tokens": 4},
        "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": STEPS},
        "environment": {"name": "arithmetic"},
        "evaluation": {"num_problems": 4},
    }
)


@pytest.fixture
def api(home: Home, stack: ScriptedStack) -> Iterator[ServedApi]:
    with serving(home) as api:
        yield api


def journal(home: Home, run: str) -> list[str]:
    """Write what generators would have written, and return the prompts."""
    environment = create_environment(SPEC.environment, SPEC.seed)
    problems = [environment.train_problem(key) for key in range(2 * STEPS)]
    writer = JournalWriter(home.run_folder(run) / "journal", "generator-0")
    writer.adopt(1)
    made = WeightVersion(incarnation=1, step=0, digest="ab" * 16)
    samples = tuple(
        Sample(
            tokens=np.array([55, 10], np.int32),
            logprobs=np.array([-0.5, -4.0], np.float32),
            mask=np.ones(2, np.uint8),
            finish_reason="stop",
            text=f"answer {number}\n",
            reward=float(number),
            rewards={"exact": float(number)},
            correct=number == 1,
            seed=2**61 + number,
        )
        for number in range(2)
    )
    prompt = np.array([1, 2, 3], np.int32)
    writer.append(
        [PromptGroup(key, 1, problem.id, prompt, made, made, samples) for key, problem in enumerate(problems)]
    )
    writer.close()
    return [problem.prompt for problem in problems]


async def test_a_day(page: Page, api: ServedApi, stack: ScriptedStack, home: Home) -> None:
    """Launch, watch, pause, resume, open a record, follow its lineage; the page is never loaded anew."""
    run = f"run-{uuid.uuid4().hex[:8]}"
    mid_step, near_end = stack.script.hold(OpKind.ROLLOUT_BATCH, 2), stack.script.hold(OpKind.TRAIN_STEP, 4)
    await page.goto(api.url)
    await expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
    await expect(page.get_by_text("Live")).to_be_visible()

    async with httpx.AsyncClient(base_url=api.url, timeout=30) as client:
        body = {"run_id": run, "spec": SPEC.model_dump(mode="json")}
        assert (await client.post("/v1/runs", json=body)).status_code == 201
    prompts = await asyncio.to_thread(journal, home, run)
    line = page.get_by_role("row", name=run)
    await expect(line).to_contain_text("running")
    await expect(line).to_contain_text(f"1 / {STEPS}")
    await line.get_by_role("link", name=run).click()

    await expect(page.locator(".name .state")).to_have_text("running")
    await expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "1")
    await expect(page.get_by_label("What it does now")).to_contain_text("step 2: roll out prompts")
    history = page.get_by_role("link", name="Workflow in Temporal")
    await expect(history).to_have_attribute(
        "href", f"http://127.0.0.1:8233/namespaces/default/workflows/{run}"
    )

    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_text("It pauses after the step it is in.")).to_be_visible()
    mid_step.set()
    await expect(page.locator(".name .state")).to_have_text("paused")
    await expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "2")
    await expect(page.get_by_text(f"ratchet run resume {run}")).to_be_visible()

    await page.get_by_role("button", name="Resume", exact=True).click()
    await expect(page.locator(".name .state")).to_have_text("running")
    await expect(page.get_by_label("What it does now")).to_contain_text("step 4: train on prompts")
    near_end.set()
    await expect(page.locator(".name .state")).to_have_text("completed")
    await expect(page.get_by_role("img", name="Reward by step, up to step 4")).to_be_visible()
    await expect(page.get_by_role("button", name="Pause")).to_be_hidden()

    await page.get_by_role("region", name="Steps, newest first").get_by_role("link", name="3").click()
    await expect(page.get_by_role("heading", name="Step 3")).to_be_visible()
    samples = page.get_by_role("table", name="Samples of this step")
    await expect(samples.get_by_role("row")).to_have_count(1 + 4)
    await samples.get_by_role("button", name="Reward").click()
    await samples.get_by_role("button", name="Reward").click()
    await expect(samples.get_by_role("row").nth(1)).to_contain_text("answer 1")
    await expect(page.get_by_role("img", name="4 samples by reward: 0: 2, 1: 2")).to_be_visible()
    await samples.get_by_role("link", name="4").first.click()

    await expect(page.get_by_role("heading", name="Prompt 4")).to_be_visible()
    await expect(page.locator("pre").first).to_have_text(prompts[4])
    await expect(page.locator("#sample-1")).to_be_in_viewport()
    answer = page.get_by_role("article", name="Sample 1")
    await expect(answer).to_contain_text(f"seed {2**61 + 1}")  # exact, beyond what JavaScript's numbers hold
    await answer.get_by_text("Raw tokens").click()
    await expect(answer.get_by_role("listitem")).to_have_text(["55", "10"])

    await page.get_by_label("Where this is").get_by_role("link", name=run).click()
    await page.get_by_label("On this page").get_by_role("link", name="Lineage").click()
    graph = page.get_by_role("region", name="Where they come from")
    await expect(graph).to_contain_text("base model")
    await expect(graph.get_by_role("link", name="The checkpoint of step 4")).to_be_visible()
    await graph.get_by_role("link", name=f"{run}, incarnation 1, weights after step 4").click()
    await expect(page.get_by_role("heading", name="Step 4")).to_be_visible()
    await page.go_back()
    await page.get_by_role("link", name="The checkpoint of step 4").click()
    await expect(page.locator("#checkpoint-1-4")).to_be_in_viewport()


async def test_a_run_is_stopped_only_after_a_second_thought(
    page: Page, api: ServedApi, stack: ScriptedStack
) -> None:
    run = f"run-{uuid.uuid4().hex[:8]}"
    held = stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    await stack.start(SPEC, run)
    async with asyncio.timeout(30):
        await stack.script.began[OpKind.ROLLOUT_BATCH, 2].wait()
    await page.goto(f"{api.url}/runs/{run}")
    await page.get_by_role("button", name="Stop").click()
    asked = page.get_by_role("dialog", name="Stop the run?")
    await asked.get_by_role("button", name="Let it run").click()
    await expect(asked).to_be_hidden()
    await expect(page.locator(".name .state")).to_have_text("running")
    await page.get_by_role("button", name="Stop").click()
    await asked.get_by_role("button", name="Stop it").click()
    await expect(page.locator(".name .state")).to_have_text("stopped")
    held.set()
    await expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
