"""Prompt groups that are made beside each other, while the weights change."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence

import pytest

from ratchet.environments.arithmetic import ArithmeticEnvironment
from ratchet.environments.protocol import Problem, Score
from ratchet.generation.live import LiveEngine
from ratchet.journal.reader import JournalIndex
from ratchet.journal.writer import JournalWriter
from ratchet.rollouts import asking
from ratchet.rollouts.manager import RolloutManager
from ratchet.rollouts.partition import PARTITION, TrainPartition, is_finished, is_given_up
from ratchet.sessions.losses import WeightsMissing
from ratchet.spec.faults import Cancelled, DataFault, InfraFault
from ratchet.spec.ids import WeightVersion
from ratchet.spec.run_spec import RunSpec
from tests.unit.rollouts.conftest import Calculator


def version(step: int) -> WeightVersion:
    return WeightVersion(incarnation=1, step=step, digest=f"d{step}")


class Remote(ArithmeticEnvironment):
    """Scores once it is let; what it is told to raise, it raises first."""

    def __init__(self, options: Mapping[str, object], seed: int) -> None:
        super().__init__(options, seed)
        self.asked: list[str] = []
        self.held: dict[str, asyncio.Event] = {}
        self.faults: dict[str, list[Exception]] = {}
        self.always: dict[str, Exception] = {}

    async def score(self, problem: Problem, text: str) -> Score:  # type: ignore[override]
        self.asked.append(problem.id)
        if fault := self.always.get(problem.id):
            raise fault
        if faults := self.faults.get(problem.id):
            raise faults.pop(0)
        if hold := self.held.get(problem.id):
            await hold.wait()
        return super().score(problem, text)


class Bench:
    def __init__(self, tmp_path, spec: RunSpec, plane, weights: int | None = 0) -> None:
        self.generator = Calculator()
        self.environment = Remote(spec.environment.options, spec.seed)
        self.engine = LiveEngine(self.generator, alone=spec.generation.deterministic)
        self.plane = plane
        self.index = JournalIndex(tmp_path / "journal")
        self.journal = JournalWriter(tmp_path / "journal", "generator-0")
        self.manager = RolloutManager(
            spec,
            self.engine,
            self.generator,
            self.environment,
            self.journal,
            JournalIndex(tmp_path / "journal"),
            TrainPartition(plane, "t"),
        )
        self.width = spec.grpo.num_generations_per_prompt
        self.cancels: list[Callable[[], None]] = []

    async def weights(self, step: int) -> None:
        await self.manager.switch(lambda: version(step))

    def rollout(self, keys: Sequence[int], on_group: Callable[[int], None] = lambda _key: None):
        return asyncio.create_task(self.manager.rollout(keys, 1, on_group, batch_known=self.cancels.append))

    def problem(self, key: int) -> str:
        return self.environment.train_problem(key).id

    def hold(self, key: int) -> asyncio.Event:
        return self.environment.held.setdefault(self.problem(key), asyncio.Event())

    async def asked(self, key: int) -> None:
        while self.problem(key) not in self.environment.asked:
            await asyncio.sleep(0.002)

    async def finished(self) -> list[int]:
        return [group.key for group in await self.there() if is_finished(group)]

    async def given_up(self) -> list[int]:
        return [group.key for group in await self.there() if is_given_up(group)]

    async def there(self):
        batch = await asyncio.to_thread(self.plane.describe, PARTITION)
        return sorted(batch.groups, key=lambda group: group.key)

    def journaled(self) -> dict[int, tuple[int, int]]:
        """Key -> steps of the weights that sampled its first and last token."""
        self.index.refresh()
        groups = self.index.groups(self.index.keys())
        return {key: (group.version_start.step, group.version_end.step) for key, group in groups.items()}


@pytest.fixture
def bench(tmp_path, spec: RunSpec, make_plane):
    @contextlib.asynccontextmanager
    async def made(max_dropped: int = 0, timeout_s: float = 60.0, weights: int | None = 0, **asynchronous):
        settings = {"sampler": "windowed", "refit": "keep", "max_staleness": 2} | asynchronous
        environment = {**spec.environment.model_dump(), "max_dropped": max_dropped, "timeout_s": timeout_s}
        told = spec.model_dump() | {"asynchronous": settings, "environment": environment}
        bench = Bench(tmp_path, RunSpec.model_validate(told), make_plane())
        if weights is not None:
            await bench.weights(weights)
        try:
            yield bench
        finally:
            bench.engine.close()
            bench.manager.close()
            bench.journal.close()

    return made


async def within(work, seconds: float = 20.0):
    async with asyncio.timeout(seconds):
        return await work


async def test_a_slow_prompt_holds_up_nothing_but_itself(bench) -> None:
    async with bench() as b:
        slow, heard = b.hold(1), []
        rollout = b.rollout([0, 1, 2], heard.append)
        while len(heard) < 2:
            await asyncio.sleep(0.002)
        assert sorted(heard) == (await b.finished()) == sorted(b.journaled()) == [0, 2]
        slow.set()
        result = await within(rollout)
        assert [group.key for group in result.groups] == [0, 1, 2]
        assert result.samples_generated == 3 * b.width


async def test_a_batch_that_is_asked_for_again_samples_only_what_is_not_journaled(bench) -> None:
    async with bench() as b:
        slow = b.hold(1)
        rollout = b.rollout([0, 1, 2])
        await b.asked(1)
        while len(await b.finished()) < 2:
            await asyncio.sleep(0.002)
        b.cancels[0]()
        with pytest.raises(Cancelled, match="2 of 3 groups"):
            await within(rollout)
        slow.set()
        result = await within(b.rollout([0, 1, 2]))
        assert [group.replayed for group in result.groups] == [True, False, True]
        assert result.samples_generated == 4 * b.width


async def test_no_more_than_the_permitted_groups_are_sampled_at_once(bench) -> None:
    async with bench(max_inflight_groups=2) as b:
        holds = {key: b.hold(key) for key in range(4)}
        rollout = b.rollout([0, 1, 2, 3])
        await b.asked(0)
        await b.asked(1)
        await asyncio.sleep(0.05)
        begun = [group.key for group in await b.there()]
        assert begun == [0, 1]
        for key, hold in holds.items():
            hold.set()
            await asyncio.sleep(0)
            del key
        assert len((await within(rollout)).groups) == 4


async def test_it_reports_how_much_of_its_permits_and_of_its_time_it_used(bench, monkeypatch) -> None:
    monkeypatch.setattr(asking, "BACK_OFF_S", 0.001)
    async with bench(max_inflight_groups=4) as b:
        hold = b.hold(0)
        b.environment.faults[b.problem(1)] = [ConnectionError("refused")]
        rollout = b.rollout([0, 1])
        await b.asked(0)
        while await b.finished() != [1]:
            await asyncio.sleep(0.002)
        assert (await b.manager.report())["environment_retries"] == 1.0
        await asyncio.sleep(0.05)
        waiting = await b.manager.report()
        assert waiting["rollout_idle"] == pytest.approx(3 / 4, abs=0.01), "one of four permits is in use"
        assert (waiting["generation_busy"], waiting["environment_retries"]) == (0.0, 0.0)
        hold.set()
        await within(rollout)
        await b.manager.report()
        await asyncio.sleep(0.01)
        assert (await b.manager.report())["rollout_idle"] == 1.0


@pytest.mark.parametrize("refit", ["keep", "abort"])
async def test_weights_that_come_do_not_wait_for_groups(bench, refit: str) -> None:
    async with bench(refit=refit) as b:
        slow = b.hold(0)
        rollout = b.rollout([0])
        await b.asked(0)
        await within(b.weights(1))
        assert (await within(b.rollout([1]))).groups[0].key == 1
        slow.set()
        await within(rollout)
        assert b.journaled() == {0: (0, 0), 1: (1, 1)}


async def test_drained_weights_wait_for_groups_and_groups_for_them(bench) -> None:
    async with bench(refit="drain") as b:
        slow = b.hold(0)
        first = b.rollout([0])
        await b.asked(0)
        weights = asyncio.create_task(b.weights(1))
        await asyncio.sleep(0.02)
        second = b.rollout([1])
        await asyncio.sleep(0.05)
        assert not weights.done()
        assert (await b.finished()) == []
        slow.set()
        await within(asyncio.gather(weights, first, second))
        assert b.journaled() == {0: (0, 0), 1: (1, 1)}


async def test_a_call_that_is_cut_short_is_made_again_under_the_new_weights(bench) -> None:
    async with bench(refit="abort") as b:
        running, asked = threading.Event(), b.generator.generate

        def generate(prompts, seeds, params, should_stop):
            if not running.is_set():
                running.set()
                while not should_stop():
                    pass
            return asked(prompts, seeds, params, should_stop)

        b.generator.generate = generate
        rollout = b.rollout([0])
        await asyncio.to_thread(running.wait, 20)
        await within(b.weights(1))
        await within(rollout)
        assert b.journaled() == {0: (1, 1)}


async def test_groups_that_have_become_too_old_are_let_go(bench) -> None:
    async with bench(max_staleness=1) as b:
        b.hold(0)
        rollout = b.rollout([0, 1])
        await b.asked(0)
        while (await b.finished()) != [1]:
            await asyncio.sleep(0.002)
        await b.weights(1)
        assert not rollout.done()
        await b.weights(2)
        result = await within(rollout)
        assert ([group.key for group in result.groups], result.dropped) == ([1], (0,))
        assert b.manager.counters.too_old == 1


async def test_a_prompt_that_cannot_be_scored_is_given_up_and_the_trainer_can_see_it(bench) -> None:
    async with bench(max_dropped=1) as b:
        b.environment.always[b.problem(1)] = DataFault("no such tool")
        result = await within(b.rollout([0, 1]))
        assert ([group.key for group in result.groups], result.dropped) == ([0], (1,))
        assert b.environment.asked.count(b.problem(1)) >= asking.DATA_TRIES
        assert await b.given_up() == [1]
        again = await within(b.rollout([0, 1]))
        assert (again.dropped, again.samples_generated) == ((1,), result.samples_generated)


async def test_one_prompt_too_many_ends_the_batch_with_its_fault(bench) -> None:
    async with bench() as b:
        b.environment.always[b.problem(1)] = DataFault("no such tool")
        b.hold(0)
        with pytest.raises(DataFault, match="no such tool"):
            await within(b.rollout([0, 1]))


async def test_an_environment_that_is_away_for_a_while_costs_nothing_but_time(bench, monkeypatch) -> None:
    monkeypatch.setattr(asking, "BACK_OFF_S", 0.01)
    async with bench() as b:
        b.environment.faults[b.problem(0)] = [ConnectionError("refused"), InfraFault("503"), OSError("reset")]
        result = await within(b.rollout([0]))
        assert len(result.groups) == 1
        assert (result.samples_generated, b.manager.asked.away) == (b.width, 3)


async def test_an_environment_that_stays_away_is_a_fault_that_names_it(bench, monkeypatch) -> None:
    monkeypatch.setattr(asking, "BACK_OFF_S", 0.01)
    async with bench() as b:
        b.environment.always[b.problem(0)] = ConnectionError("refused")
        with pytest.raises(InfraFault, match=r"arithmetic gave no score .* in 5 tries: .*refused"):
            await within(b.rollout([0]))


async def test_an_answer_that_never_comes_is_a_fault_within_its_deadline(bench, monkeypatch) -> None:
    monkeypatch.setattr(asking, "BACK_OFF_S", 0.01)
    async with bench(timeout_s=0.05) as b:
        b.hold(0)
        with pytest.raises(InfraFault, match=r"no answer within 0\.05 s \(environment\.timeout_s\)"):
            await within(b.rollout([0]))


async def test_without_weights_nothing_is_sampled(bench) -> None:
    async with bench(weights=None) as b:
        with pytest.raises(WeightsMissing):
            await within(b.rollout([0]))
        await b.weights(0)
        assert len((await within(b.rollout([0]))).groups) == 1


async def test_what_an_older_incarnation_asked_for_ends(bench) -> None:
    async with bench() as b:
        b.hold(0)
        rollout = b.rollout([0])
        await b.asked(0)
        await within(b.manager.end_older(2))
        with pytest.raises(Cancelled):
            await within(rollout)


async def test_what_the_data_plane_lost_is_put_again(bench) -> None:
    async with bench(max_dropped=1) as b:
        b.environment.always[b.problem(2)] = DataFault("no such tool")
        await within(b.rollout([0, 1, 2]))
        await asyncio.to_thread(b.plane.evict, PARTITION, [0, 1, 2], "lost")
        await within(b.manager.refill([0, 1, 2, 3]))
        assert (await b.finished()) == [0, 1]
        assert await b.given_up() == [2]


@pytest.mark.parametrize("how", ["finished", "given-up", "too-old", "raised", "cancelled"])
async def test_permits_come_back_however_a_group_ends(bench, how: str) -> None:
    """Afterwards as many as ever can be made at once, and no more."""
    async with bench(max_inflight_groups=2, max_staleness=1, max_dropped=1) as b:
        first = b.problem(0)
        if how == "given-up":
            b.environment.always[first] = DataFault("no such tool")
        elif how == "raised":
            b.environment.always[first] = RuntimeError("a defect")
        elif how in ("too-old", "cancelled"):
            b.hold(0)
        rollout = b.rollout([0])
        if how in ("too-old", "cancelled"):
            await b.asked(0)
        if how == "too-old":
            await b.weights(1)
            await b.weights(2)
        elif how == "cancelled":
            b.cancels[0]()
        expected = {"raised": RuntimeError, "cancelled": Cancelled}.get(how)
        with pytest.raises(expected) if expected else contextlib.nullcontext():
            await within(rollout)

        keys, before = [1, 2, 3, 4], len(await b.there())
        for key in keys:
            b.hold(key)
        again = b.rollout(keys)
        await b.asked(1)
        await b.asked(2)
        await asyncio.sleep(0.05)
        assert len(await b.there()) == before + 2
        for key in keys:
            b.hold(key).set()
        assert len((await within(again)).groups) == 4
