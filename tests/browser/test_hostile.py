"""Text of a model, a prompt or an error is text: it is shown, and never run."""

from collections.abc import Iterator

import numpy as np
import pytest
from playwright.async_api import Browser, Error, Page, expect

from benchmarks.gallery import spec
from ratchet.environments.registry import create_environment
from ratchet.journal.writer import JournalWriter
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec import names
from ratchet.spec.control import EventEntry, RecordRequest, RegisterRun, StateEntry, StepEntry
from ratchet.spec.faults import Fault, FaultKind, Incident
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion
from ratchet.spec.receipts import RefitReceipt, RolloutReceipt, TrainReceipt
from ratchet.spec.state import RunPhase
from ratchet.store import Store
from workers.testing.browser import ServedApi, serving

pytestmark = pytest.mark.browser

RUN = "hostile"
TEXTS = (
    '<img src=x onerror="window.ran=1">',
    "<script>window.ran=1</script>",
    '"><svg onload="window.ran=1"><a href="javascript:window.ran=1">click</a>',
    "</pre></main><iframe srcdoc='<script>parent.ran=1</script>'></iframe>",
    "{{constructor.constructor('window.ran=1')()}}",
)
ALL = " ".join(TEXTS)
MADE = WeightVersion(incarnation=1, step=1, digest="ab" * 16)


@pytest.fixture
def api(home: Home) -> Iterator[ServedApi]:
    """Wherever somebody else's text can be, it is hostile."""
    store = Store(home.store_url)
    store.migrate()
    of = spec(steps=2)
    store.register_run(
        RegisterRun(run=RUN, spec=of, workflow_run_id="w", incarnation=1),
        at=1000.0,
        code={"torch": TEXTS[0]},
        inputs={"dataset": TEXTS[1]},
    )
    rollout = RolloutReceipt(
        op="", cursor_start=0, cursor_end=1, num_groups=1, num_samples=len(TEXTS), replayed_groups=0,
        num_tokens=10, reward_mean=0.5, reward_std=0.5, accuracy=0.5, length_mean=2.0,
        truncated_fraction=0.0, samples_generated=5, version=MADE,
    )  # fmt: skip
    train = TrainReceipt(
        op="", version=MADE, cursor_start=0, cursor_end=1, num_groups=1, zero_advantage_groups=0,
        num_tokens=10, optimizer_steps=1, metrics={"loss": 0.1, TEXTS[0]: 1.0},
    )  # fmt: skip
    refit = RefitReceipt(op="", version=MADE, mover="ipc", num_tensors=1, num_bytes=4, wire_digest="w")
    incident = Incident(lost=TEXTS[0], cause=ALL, detected_at=1001.0, done=TEXTS[2], seconds=1.0)
    told = incident.model_dump(mode="json")
    entries = (
        StepEntry(step=1, started_at=1001.0, finished_at=1002.0, rollout=rollout, train=train, refit=refit),
        EventEntry(key="incident/1", topic=names.TOPIC_INCIDENT, message=ALL, data=told),
        StateEntry(
            phase=RunPhase.FAILED, step=1, fault=Fault(kind=FaultKind.INTERNAL, message=ALL, role=TEXTS[0])
        ),
    )
    store.record(RecordRequest(run=RUN, incarnation=1, at=1003.0, entries=entries))
    store.close()
    samples = tuple(
        Sample(
            tokens=np.array([1], np.int32),
            logprobs=np.array([-1.0], np.float32),
            mask=np.ones(1, np.uint8),
            finish_reason="stop",
            text=text,
            reward=1.0,
            rewards={text: 1.0},
            correct=True,
            seed=1,
        )
        for text in TEXTS
    )
    problem = create_environment(of.environment, of.seed).train_problem(0).id
    writer = JournalWriter(home.run_folder(RUN) / "journal", "generator-0")
    writer.adopt(1)
    writer.append([PromptGroup(0, 1, problem, np.array([1], np.int32), MADE, MADE, samples)])
    writer.close()
    with serving(home) as api:
        yield api


async def test_hostile_text_is_shown_as_text(page: Page, api: ServedApi) -> None:
    said: list[str] = []
    page.on("dialog", lambda dialog: said.append(dialog.message))
    for path in (
        "/",
        f"/runs/{RUN}",
        f"/runs/{RUN}/steps/1",
        f"/runs/{RUN}/records/0",
        f"/runs/{RUN}/lineage",
        f"/compare?runs={RUN},{TEXTS[1]}",
        f"/runs/{TEXTS[0].replace('/', '')}",
    ):
        await page.goto(api.url + path)
        await page.locator("main h1").first.wait_for()
        await page.locator("main [role=status]").first.wait_for(state="detached")
        made = await page.locator("main :is(script, iframe, img, [onload], [onerror])").count()
        assert (made, await page.evaluate("window.ran ?? null")) == (0, None), path
    assert not said
    await page.goto(f"{api.url}/runs/{RUN}/records/0")
    for place, text in enumerate(TEXTS):
        await expect(page.locator(f"#sample-{place} pre")).to_have_text(text)
    await page.goto(f"{api.url}/runs/{RUN}")
    await expect(page.get_by_role("group", name="Fault")).to_contain_text(TEXTS[3])


async def test_even_a_mistake_in_a_page_could_not_run_it(browser: Browser, api: ServedApi) -> None:
    """The policy forbids markup from text, and scripts that are not files of ours."""
    page = await browser.new_page()
    await page.goto(api.url)
    for mistake in (
        "text => { document.body.innerHTML = text }",
        "text => { document.head.appendChild(document.createElement('script')).text = text }",
        "text => { setTimeout(text) }",
    ):
        with pytest.raises(Error, match="Trusted"):
            await page.evaluate(mistake, "window.ran = 1")
    assert await page.evaluate("window.ran ?? null") is None
    await page.close()
