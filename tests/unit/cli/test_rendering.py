"""What `watch` draws, to the letter."""

import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from ratchet.cli.following import Sight
from ratchet.cli.lines import Ticker, outcome, run_table, step_line
from ratchet.cli.live import live_view
from ratchet.cli.words import duration, size, sparkline
from ratchet.spec.faults import Fault, FaultKind
from ratchet.spec.state import RunPhase
from ratchet.spec.views import (
    CheckpointView,
    EvaluationView,
    IncidentView,
    QueueView,
    RunLinks,
    RunView,
    StepView,
)

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def a_step(step: int, reward: float | None) -> StepView:
    return StepView(
        step=step,
        incarnation=1,
        version=f"1.{step}.abcdef01",
        started_at=BEGAN + timedelta(seconds=8 * (step - 1)),
        finished_at=BEGAN + timedelta(seconds=8 * step),
        reward_mean=reward,
        accuracy=reward,
        length_mean=3.5,
        num_tokens=1200,
        num_groups=12,
        zero_advantage_groups=4,
        rollout_s=3.0,
        train_s=4.0,
        refit_s=0.25,
        metrics={"grad_norm": 0.815, "logprob_error": 0.0021},
    )


STEPS = [a_step(step, 0.30 + 0.02 * step) for step in range(1, 13)]

VIEW = RunView(
    id="smollm2-arithmetic-3fa2c1",
    name="smollm2-arithmetic",
    phase=RunPhase.RUNNING,
    step=12,
    max_num_steps=30,
    incarnation=1,
    created_at=BEGAN,
    updated_at=BEGAN,
    links=RunLinks(self="/v1/runs/x", steps="/v1/runs/x/steps", temporal="http://127.0.0.1:8233/x"),
    spec={},
    evaluations=[EvaluationView(step=0, incarnation=1, accuracy=0.617, reward_mean=0.617, num_problems=128)],
    last_checkpoint=CheckpointView(
        step=10, incarnation=1, path="/a/checkpoints/1-10", digest="d", num_bytes=1_600_000_000
    ),
    live=True,
    doing=["rollout of step 13: 7 of 12 groups"],
)


def drawn(what: RenderableType) -> str:
    screen = io.StringIO()
    Console(file=screen, width=100, highlight=False, color_system="standard", force_terminal=True).print(what)
    plain = Text.from_ansi(screen.getvalue()).plain
    return "\n".join(line.rstrip() for line in plain.splitlines())


def test_the_live_view_of_a_run_in_the_middle() -> None:
    assert drawn(live_view(Sight(VIEW, STEPS))) == (
        "smollm2-arithmetic-3fa2c1  running\n"
        "step           ━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━━━  12/30  8.0 s a step  2m 24s left\n"
        "now            rollout of step 13: 7 of 12 groups\n"
        "reward         ▁▁▂▃▃▄▅▆▆▇██  0.540  from 0.320\n"
        "accuracy       ▁▁▂▃▃▄▅▆▆▇██  0.540  from 0.320\n"
        "speed          400 tokens/s  rollout 3.0 s, train 4.0 s, refit 0.2 s\n"
        "gradient       norm 0.815  4 of 12 groups taught nothing\n"
        "logprob error  0.0021 nats a token  generation against training\n"
        "held-out       0.617 at step 0  (128 problems)\n"
        "checkpoint     step 10  1.6 GB  /a/checkpoints/1-10\n"
        "temporal       http://127.0.0.1:8233/x\n"
        "Ctrl-C detaches; the run goes on"
    )


def test_a_run_that_just_began_has_no_curves_and_no_estimate() -> None:
    view = VIEW.model_copy(
        update={"phase": RunPhase.STARTING, "step": 0, "evaluations": [], "last_checkpoint": None}
    )
    text = drawn(live_view(Sight(view, [])))
    assert "0/30" in text
    assert "left" not in text
    assert "reward" not in text


@pytest.mark.parametrize(
    ("sight", "said"),
    [
        (Sight(VIEW, STEPS, away_s=12.0), "the API has not answered for 12 s: trying again"),
        (
            Sight(VIEW.model_copy(update={"phase": RunPhase.PAUSED}), STEPS),
            "paused: ratchet run resume smollm2-arithmetic-3fa2c1",
        ),
        (Sight(VIEW.model_copy(update={"live": False, "doing": []}), STEPS), "waiting for the workflow"),
        (
            Sight(
                VIEW.model_copy(
                    update={
                        "phase": RunPhase.FAILED,
                        "fault": Fault(kind=FaultKind.ACTOR_LOST, message="[trainer] is gone"),
                    }
                ),
                STEPS,
            ),
            "ActorLost: [trainer] is gone",
        ),
    ],
)
def test_now_says_what_holds_it_up(sight: Sight, said: str) -> None:
    assert said in drawn(live_view(sight))


def test_measurements_that_are_missing_do_not_break_the_view() -> None:
    lost = a_step(13, None).model_copy(update={"metrics": {}, "rollout_s": 0.0})
    text = drawn(live_view(Sight(VIEW, [*STEPS, lost])))
    assert "norm ?" in text
    assert "0.540" in text
    assert step_line(lost, 30).startswith("step 13/30  reward ?  accuracy ?  0 tokens/s")
    assert "unknown" in drawn(live_view(Sight(VIEW, [lost])))


def test_the_outcome_compares_first_and_last() -> None:
    after = EvaluationView(step=30, incarnation=1, accuracy=0.781, reward_mean=0.781, num_problems=128)
    view = VIEW.model_copy(
        update={
            "phase": RunPhase.COMPLETED,
            "step": 30,
            "ended_at": BEGAN + timedelta(seconds=222),
            "evaluations": [*VIEW.evaluations, after],
        }
    )
    assert drawn(outcome(Sight(view, STEPS))) == (
        "smollm2-arithmetic-3fa2c1  completed after 30 of 30 steps, 3m 42s\n"
        "held-out accuracy  0.617 → 0.781  +0.164  (steps 0 and 30, 128 problems)\n"
        "mean reward        0.360 (first 5 steps) → 0.500 (last 5 steps)\n"
        "checkpoint         step 10  1.6 GB  /a/checkpoints/1-10\n"
        "temporal           http://127.0.0.1:8233/x"
    )


def test_plain_lines_say_everything_once() -> None:
    ticker = Ticker()
    first = ticker.lines(Sight(VIEW, STEPS[:2]))
    assert first == [
        "smollm2-arithmetic-3fa2c1 is running",
        "held-out accuracy 0.617 at step 0 (128 problems)",
        "step 1/30  reward 0.320  accuracy 0.320  400 tokens/s  gradient 0.815  logprob error 0.0021  8.0 s",
        "step 2/30  reward 0.340  accuracy 0.340  400 tokens/s  gradient 0.815  logprob error 0.0021  8.0 s",
        "checkpoint of step 10: /a/checkpoints/1-10",
    ]
    assert ticker.lines(Sight(VIEW, STEPS[:2])) == []
    assert ticker.lines(Sight(VIEW, STEPS[:2], away_s=1.0)) == [
        "the API does not answer: trying again, the run goes on"
    ]
    assert ticker.lines(Sight(VIEW, STEPS[:2], away_s=2.0)) == []
    assert ticker.lines(Sight(VIEW, STEPS[:3]))[0] == "the API answers again"


def test_plain_lines_tell_how_a_run_starts_and_leave_the_rest_to_the_steps() -> None:
    ticker = Ticker()

    def said(phase: RunPhase, *doing: str) -> list[str]:
        return ticker.lines(Sight(VIEW.model_copy(update={"phase": phase, "doing": list(doing)}), STEPS[:1]))

    assert said(RunPhase.STARTING, "open the session")[:2] == [
        "smollm2-arithmetic-3fa2c1 is starting",
        "open the session",
    ]
    assert said(RunPhase.STARTING, "open the session") == []
    assert said(RunPhase.STARTING, "load the base model (preparing the model)") == [
        "load the base model (preparing the model)"
    ]
    assert said(RunPhase.STARTING, "load the base model (attempt 2: no answer)") != []
    assert said(RunPhase.STARTING, "load the base model (attempt 3: no answer)") == []
    assert said(RunPhase.RUNNING, "step 2: roll out prompts 12 to 23") == [
        "smollm2-arithmetic-3fa2c1 is running"
    ]


def test_everything_that_is_open_has_a_line_of_its_own() -> None:
    doing = ["step 10: write the checkpoint", "step 11: roll out prompts 120 to 131 (7 of 12 groups)"]
    text = drawn(live_view(Sight(VIEW.model_copy(update={"doing": doing}), STEPS)))
    assert (
        "now            step 10: write the checkpoint\n"
        "               step 11: roll out prompts 120 to 131 (7 of 12 groups)\n"
    ) in text


LOST = Fault(kind=FaultKind.ACTOR_LOST, message="the trainer's process is gone", role="trainer")
INCIDENT = IncidentView(
    key="recovery/2",
    incarnation=2,
    at=BEGAN,
    lost="trainer",
    cause="its process is gone",
    done="back to step 10 (1-10) as incarnation 2; the run goes on",
    seconds=21.4,
)
CLOCK = f"{BEGAN.astimezone():%H:%M:%S}"


def test_a_recovery_says_what_it_is_from_and_what_is_done() -> None:
    recovering = {"phase": RunPhase.RECOVERING, "fault": LOST, "doing": ["look for the newest checkpoint"]}
    text = drawn(live_view(Sight(VIEW.model_copy(update=recovering), STEPS)))
    assert text.startswith("smollm2-arithmetic-3fa2c1  recovering\n")
    assert (
        "now            ActorLost: the trainer's process is gone\n"
        "               look for the newest checkpoint\n"
    ) in text
    assert "left" not in text  # of the time: nobody knows while it goes back


def test_the_newest_incidents_have_a_line_each() -> None:
    open_one = INCIDENT.model_copy(update={"key": "stalled", "lost": "generator", "seconds": None})
    view = VIEW.model_copy(update={"incidents": [INCIDENT, open_one], "incarnation": 2})
    text = drawn(live_view(Sight(view, STEPS)))
    assert f"incidents      {CLOCK}  trainer  its process is gone → back to step 10 (1-10)" in text
    assert "21 s" in text
    assert f"               {CLOCK}  generator  its process is gone" in text


def test_a_stalled_run_names_who_is_silent() -> None:
    silent = INCIDENT.model_copy(
        update={
            "lost": "trainer",
            "cause": "train_step of step 13 has not moved for 16m 00s",
            "seconds": None,
        }
    )
    view = VIEW.model_copy(update={"phase": RunPhase.STALLED, "incidents": [INCIDENT, silent]})
    assert (
        "now            trainer is silent: train_step of step 13 has not moved for 16m 00s\n"
        "               rollout of step 13: 7 of 12 groups\n"
    ) in drawn(live_view(Sight(view, STEPS)))


def test_a_queued_run_says_behind_whom_and_when_that_changes() -> None:
    def queued(words: str) -> RunView:
        queue = QueueView(
            words=words, ahead=[], num_ahead=0, holders=[], num_holders=1, priority=0, since=BEGAN
        )
        fields = {"phase": RunPhase.QUEUED, "queue": queue, "doing": [words]}
        return VIEW.model_copy(update={**fields, "step": 0, "evaluations": [], "last_checkpoint": None})

    far, near = (
        queued("queued behind 2 runs: a, b (priority 0)"),
        queued("queued behind 1 run: b (priority 0)"),
    )
    ticker = Ticker()
    assert ticker.lines(Sight(far, [])) == [f"{VIEW.id} is queued", "queued behind 2 runs: a, b (priority 0)"]
    assert ticker.lines(Sight(far, [])) == []
    assert ticker.lines(Sight(near, [])) == ["queued behind 1 run: b (priority 0)"]
    assert "now       queued behind 1 run: b (priority 0)" in drawn(live_view(Sight(near, [])))
    assert drawn(run_table([near])).endswith("queued behind 1 run: b (priority 0)")


def test_plain_lines_tell_a_recovery_as_it_happens_and_no_step_twice_as_new() -> None:
    ticker = Ticker()
    ticker.lines(Sight(VIEW, STEPS[:3]))
    recovering = VIEW.model_copy(update={"phase": RunPhase.RECOVERING, "fault": LOST, "incarnation": 2})
    assert ticker.lines(Sight(recovering, STEPS[:2])) == [
        "smollm2-arithmetic-3fa2c1 is recovering: ActorLost: the trainer's process is gone"
    ]
    again = STEPS[2].model_copy(update={"incarnation": 2, "retrained": True, "replayed_groups": 12})
    back = VIEW.model_copy(update={"incidents": [INCIDENT], "incarnation": 2})
    running, incident, step = ticker.lines(Sight(back, [*STEPS[:2], again]))
    assert running == "smollm2-arithmetic-3fa2c1 is running"
    assert incident == (
        f"incident {CLOCK}  trainer  its process is gone → back to step 10 (1-10) as incarnation 2; "
        "the run goes on, 21 s"
    )
    assert step.startswith("step 3/30 again, 12 of 12 groups from the journal  reward 0.360")
    assert ticker.lines(Sight(back, [*STEPS[:2], again])) == []


def test_sparklines_fit_and_keep_their_ends() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([0.5], 10) == "▄"
    assert sparkline([1, 1, 1], 10) == "▄▄▄"
    assert sparkline([0, 1], 10) == "▁█"
    long = sparkline([float(value) for value in range(1000)], 40)
    assert len(long) == 40
    assert (long[0], long[-1]) == ("▁", "█")
    assert list(long) == sorted(long)


def test_words() -> None:
    assert [duration(s) for s in (0.04, 9.94, 9.96, 59.6, 185, 3599.6, 7800)] == [
        "0.0 s", "9.9 s", "10 s", "1m 00s", "3m 05s", "1h 00m", "2h 10m",
    ]  # fmt: skip
    assert [size(b) for b in (812, 7_340_032, 1.6e9, 2e12)] == ["812 B", "7.3 MB", "1.6 GB", "2.0 TB"]
