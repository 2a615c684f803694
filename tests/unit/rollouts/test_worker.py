"""From cursor positions to finished groups: generated once, durable first, replayed after a crash."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from ratchet.environments.protocol import Environment, Problem, Score
from ratchet.generation.protocol import SamplingParams
from ratchet.rollouts import asking
from ratchet.rollouts.group import PromptGroup
from ratchet.rollouts.seeds import sample_seed
from ratchet.rollouts.worker import RolloutResult
from ratchet.spec.faults import Cancelled, Conflict, DataFault, InfraFault, SpecError
from ratchet.spec.ids import WeightVersion
from ratchet.spec.run_spec import RunSpec

VERSION = WeightVersion(incarnation=1, step=0, digest="c0ffee" * 5 + "00")


def roll(
    bench,
    keys,
    *,
    incarnation: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    on_group: Callable[[int], None] = lambda key: None,
) -> RolloutResult:
    return bench.worker.rollout(keys, incarnation, VERSION, should_stop, on_group)


def plain(group: PromptGroup) -> dict[str, object]:
    described = dataclasses.asdict(group)
    described["prompt"] = group.prompt.tolist()
    for sample in described["samples"]:
        for name in ("tokens", "logprobs", "mask"):
            sample[name] = (str(sample[name].dtype), sample[name].tolist())
    return described


def groups_of(bench, keys) -> list[dict[str, object]]:
    return [plain(group) for group in bench.groups(keys)]


def co_batched(spec: RunSpec) -> RunSpec:
    generation = spec.generation.model_copy(update={"deterministic": False})
    return spec.model_copy(update={"generation": generation})


def test_a_group_is_what_was_sampled_and_scored(start, spec: RunSpec) -> None:
    bench = start()
    roll(bench, [5])
    (group,) = bench.groups([5])
    problem = bench.environment.train_problem(5)
    assert (group.key, group.incarnation, group.problem_id) == (5, 1, problem.id)
    assert (group.version_start, group.version_end) == (VERSION, VERSION)
    assert bytes(group.prompt.astype(np.uint8)).decode() == problem.prompt
    assert [sample.seed for sample in group.samples] == [sample_seed(spec.seed, 5, n) for n in range(4)]
    for sample in group.samples:
        assert sample.text == str(int(problem.answer) + sample.seed % 2)
        assert sample.correct == (sample.seed % 2 == 0)
        assert sample.reward == sum(sample.rewards.values()) == float(sample.correct)
        assert len(sample.tokens) == len(sample.logprobs) == len(sample.text)
        assert sample.mask.tolist() == [1] * len(sample.tokens)
    assert bench.journaled == [5]
    assert plain(bench.index.groups([5])[5]) == plain(group)


def test_summaries_add_up(start) -> None:
    bench = start()
    result = roll(bench, [2, 0, 1])
    assert [summary.key for summary in result.groups] == [2, 0, 1]
    for summary, group in zip(result.groups, bench.groups([2, 0, 1]), strict=True):
        assert not summary.replayed
        assert summary.rewards == tuple(sample.reward for sample in group.samples)
        assert summary.correct == sum(summary.rewards)
        assert summary.num_tokens == sum(len(sample.tokens) for sample in group.samples)
        assert summary.truncated == 0


def test_truncated_samples_are_counted(start, spec: RunSpec) -> None:
    generation = spec.generation.model_copy(update={"max_new_tokens": 1})
    bench = start(spec.model_copy(update={"generation": generation}))
    (summary,) = roll(bench, [0]).groups
    assert (summary.truncated, summary.num_tokens) == (4, 4)


def test_the_sampling_parameters_are_those_of_the_spec(start) -> None:
    bench = start()
    roll(bench, [0])
    (params,) = bench.generator.params
    assert params == SamplingParams(max_new_tokens=4, temperature=1.0, top_k=5, stop_strings=("\n",))


def test_deterministic_groups_are_generated_alone_and_others_together(start, spec: RunSpec) -> None:
    alone, together = start(), start(co_batched(spec), folder="other")
    roll(alone, range(3))
    roll(together, range(3))
    assert (alone.generator.batches, together.generator.batches) == ([4, 4, 4], [12])
    assert groups_of(alone, range(3)) == groups_of(together, range(3))


@pytest.mark.parametrize("deterministic", [True, False])
def test_after_a_crash_finished_groups_are_replayed(start, spec: RunSpec, deterministic: bool) -> None:
    spec = spec if deterministic else co_batched(spec)
    first = start(spec)
    roll(first, range(4))
    second = start(spec)
    heard: list[int] = []
    result = roll(second, range(6), incarnation=2, on_group=heard.append)
    assert [summary.replayed for summary in result.groups] == [True] * 4 + [False] * 2
    assert second.worker.samples_generated == sum(second.generator.batches) == 8
    assert groups_of(second, range(4)) == groups_of(first, range(4))
    assert heard == [0, 1, 2, 3, 4, 5]
    assert [group.incarnation for group in second.groups(range(6))] == [1] * 4 + [2] * 2
    replayed, generated = result.groups[0], roll(start(spec, folder="other"), [0]).groups[0]
    assert dataclasses.replace(replayed, replayed=False) == generated


def test_a_rollout_asked_for_again_generates_nothing(start) -> None:
    bench = start()
    roll(bench, range(3))
    again = roll(bench, range(3))
    assert all(summary.replayed for summary in again.groups)
    assert bench.worker.samples_generated == 12
    assert bench.handed_over == [0, 1, 2]


def test_a_group_is_durable_before_anybody_hears_of_it(start) -> None:
    bench = start()

    def check(key: int) -> None:
        assert key in bench.journaled
        assert key in bench.handed_over

    roll(bench, range(3), on_group=check)


def test_cancellation_keeps_finished_groups(start) -> None:
    bench = start()
    heard: list[int] = []
    with pytest.raises(Cancelled):
        roll(bench, range(5), should_stop=lambda: len(heard) == 2, on_group=heard.append)
    assert bench.journaled == bench.handed_over == [0, 1]
    result = roll(bench, range(5))
    assert [summary.replayed for summary in result.groups] == [True, True, False, False, False]
    assert bench.worker.samples_generated == 20


class Unscorable:
    """Arithmetic, with one training problem that cannot be scored."""

    def __init__(self, inner: Environment, position: int, outcome: Score | None = None) -> None:
        self._inner = inner
        self._id = inner.train_problem(position).id
        self._outcome = outcome

    @property
    def num_heldout(self) -> int:
        return self._inner.num_heldout

    def train_problem(self, position: int) -> Problem:
        return self._inner.train_problem(position)

    def heldout_problem(self, index: int) -> Problem:
        return self._inner.heldout_problem(index)

    def score(self, problem: Problem, text: str) -> Score:
        if problem.id != self._id:
            return self._inner.score(problem, text)
        if self._outcome is None:
            raise DataFault("no verdict")
        return self._outcome


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_prompt_that_cannot_be_scored_is_a_fault_and_no_zero(
    start, spec: RunSpec, deterministic: bool
) -> None:
    spec = spec if deterministic else co_batched(spec)
    bench = start(spec, Unscorable(start(spec).environment, position=2))
    with pytest.raises(DataFault, match="no verdict"):
        roll(bench, range(4))
    assert bench.journaled == bench.handed_over == [0, 1]


class Away:
    """An environment whose server does not answer the first `times` times that it is asked."""

    def __init__(self, inner: Environment, times: float) -> None:
        self.train_problem, self.heldout_problem = inner.train_problem, inner.heldout_problem
        self.num_heldout = inner.num_heldout
        self._inner, self._times = inner, times

    def score(self, problem: Problem, text: str) -> Score:
        self._times -= 1
        if self._times >= 0:
            raise ConnectionRefusedError("nobody listens")
        return self._inner.score(problem, text)


class AwayToWaitFor(Away):
    async def score(self, problem: Problem, text: str) -> Score:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().score(problem, text)


@pytest.mark.parametrize("kind", [Away, AwayToWaitFor])
def test_an_environment_that_is_away_is_asked_again(start, kind: type[Away], monkeypatch) -> None:
    monkeypatch.setattr(asking, "BACK_OFF_S", 0.01)
    undisturbed, away = start(folder="undisturbed"), start(environment=kind(start().environment, 3))
    assert roll(away, range(2)).groups == roll(undisturbed, range(2)).groups
    away = start(environment=kind(start().environment, 3))
    assert away.worker.evaluate(4) == undisturbed.worker.evaluate(4)


@pytest.mark.parametrize("kind", [Away, AwayToWaitFor])
def test_an_environment_that_stays_away_is_a_fault_that_names_it(
    start, kind: type[Away], monkeypatch
) -> None:
    monkeypatch.setattr(asking, "BACK_OFF_S", 0.01)
    bench = start(environment=kind(start().environment, math.inf))
    for ask in (lambda: roll(bench, [0]), lambda: bench.worker.evaluate(1)):
        with pytest.raises(InfraFault, match=r"gave no score .* in 5 tries: .*nobody listens"):
            ask()


def test_a_reward_that_is_no_number_is_a_fault(start) -> None:
    outcome = Score(reward=float("nan"), correct=False)
    bench = start(environment=Unscorable(start().environment, 0, outcome))
    with pytest.raises(DataFault, match=r"scored .* with nan"):
        roll(bench, [0])
    assert bench.handed_over == []


def test_a_score_without_components_is_one_component(start) -> None:
    outcome = Score(reward=0.5, correct=False)
    bench = start(environment=Unscorable(start().environment, 0, outcome))
    roll(bench, [0])
    (group,) = bench.groups([0])
    assert group.samples[0].rewards == {"reward": 0.5}


def test_a_prompt_that_leaves_no_room_is_a_fault(start, spec: RunSpec) -> None:
    policy = spec.policy.model_copy(update={"max_total_sequence_length": 6})
    bench = start(spec.model_copy(update={"policy": policy}))
    with pytest.raises(DataFault, match=r"where 1 to 2 fit: raise policy\.max_total_sequence_length"):
        roll(bench, range(10))
    assert bench.generator.batches == []


def test_an_old_incarnation_generates_nothing(start) -> None:
    bench = start()
    roll(bench, [0], incarnation=2)
    with pytest.raises(Conflict):
        roll(bench, [1], incarnation=1)
    assert bench.journaled == [0]


def test_evaluation_is_greedy_over_heldout_problems_and_leaves_no_trace(start) -> None:
    bench = start()
    result = bench.worker.evaluate(40)
    assert (result.num_problems, result.accuracy, result.reward_mean) == (40, 1.0, 1.0)
    answers = [bench.environment.heldout_problem(index).answer for index in range(40)]
    assert result.length_mean == sum(map(len, answers)) / 40
    assert sum(bench.generator.batches) == 40
    assert {params.temperature for params in bench.generator.params} == {0.0}
    assert (bench.worker.samples_generated, bench.journaled, bench.handed_over) == (0, [], [])
    assert bench.worker.evaluate(40) == result


def test_evaluation_counts_wrong_answers(start, spec: RunSpec) -> None:
    generation = spec.generation.model_copy(update={"max_new_tokens": 2})
    bench = start(spec.model_copy(update={"generation": generation}))
    answers = [bench.environment.heldout_problem(index).answer for index in range(50)]
    assert bench.worker.evaluate(50).accuracy == sum(len(answer) <= 2 for answer in answers) / 50


def test_evaluation_can_be_cancelled_and_refuses_too_many_problems(start) -> None:
    bench = start()
    with pytest.raises(Cancelled):
        bench.worker.evaluate(5, should_stop=lambda: True)
    with pytest.raises(SpecError, match=r"evaluation\.num_problems"):
        bench.worker.evaluate(bench.environment.num_heldout + 1)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_prompt_that_cannot_be_scored_is_given_up_for_good_where_the_spec_allows_it(
    start, spec: RunSpec, deterministic: bool
) -> None:
    spec = spec if deterministic else co_batched(spec)
    environment = spec.environment.model_copy(update={"max_dropped": 1})
    spec = spec.model_copy(update={"environment": environment})
    bench = start(spec, Unscorable(start(spec).environment, position=2))
    result = roll(bench, range(4))
    assert result.dropped == (2,)
    assert [group.key for group in result.groups] == bench.journaled == bench.handed_over == [0, 1, 3]
    (tombstone,) = bench.index.tombstones().values()
    assert (tombstone.key, tombstone.cause) == (2, "no verdict")

    healed = start(spec)  # as after a crash: what was given up stays so, else the step would be another one
    assert roll(healed, range(4), incarnation=2).dropped == (2,)
    assert healed.worker.refill(range(4)) == []


def test_one_prompt_too_many_ends_the_rollout(start, spec: RunSpec) -> None:
    environment = spec.environment.model_copy(update={"max_dropped": 1})
    spec = spec.model_copy(update={"environment": environment})
    first = Unscorable(start(spec).environment, position=1)
    bench = start(spec, Unscorable(first, position=3))
    with pytest.raises(DataFault, match="no verdict"):
        roll(bench, range(5))
    assert bench.journaled == [0, 2]
