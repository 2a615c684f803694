"""What is told of runs, and to whom the API answers: on both databases."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratchet.spec.access import Role
from ratchet.spec.faults import Conflict, Unavailable
from ratchet.store import Audit, IdempotencyKeys, Tokens

WRITERS = 4
EACH = 25


def test_whoever_has_seen_an_id_has_seen_everything_below_it(store, told):
    """Writers of several runs at once: a reader never sees an id before a lower one."""
    for number in range(WRITERS):
        store.register_run(told.register(f"r{number}"), at=0.0, code={})
    done = threading.Event()

    def write(number: int) -> None:
        for event in range(EACH):
            request = told.record(told.event(f"e{event}"), told.state("running"), run=f"r{number}")
            while True:
                try:
                    store.record(request)
                    break
                except Unavailable:  # SQLite's lock is not fair; whoever records asks again
                    continue

    def read() -> list[int]:
        seen: list[int] = []
        while True:
            last = done.is_set()
            seen += [notice.id for notice in store.notices(after=seen[-1] if seen else 0, limit=7)]
            if last and (not seen or seen[-1] == store.newest_notice()):
                return seen

    with ThreadPoolExecutor(WRITERS + 1) as pool:
        reader = pool.submit(read)
        try:
            for writer in [pool.submit(write, number) for number in range(WRITERS)]:
                writer.result(60)
        finally:
            done.set()
        seen = reader.result(60)
    assert seen == list(range(1, WRITERS * (1 + 2 * EACH) + 1))
    mine = [notice.data.get("key") for notice in store.notices("r2", after=0) if notice.kind == "event"]
    assert mine == [f"e{event}" for event in range(EACH)]


def test_what_is_rolled_back_is_not_told(store, told, run):
    store.record(told.record(told.checkpoint(1)))
    before = store.newest_notice()
    with pytest.raises(Conflict):
        store.record(told.record(told.event("e"), told.checkpoint(1, digest="another")))
    assert store.newest_notice() == before
    store.record(told.record(told.event("e")))
    assert [notice.id for notice in store.notices(after=before)] == [before + 1]


def test_a_key_stands_for_the_launch_that_came_first(store):
    keys = IdempotencyKeys(store)
    with ThreadPoolExecutor(8) as pool:
        claims = list(
            pool.map(lambda n: keys.claim("k", run=f"run-{n}", body_digest=str(n), at=0.0), range(8))
        )
    assert len({claim.run for claim in claims}) == 1
    assert keys.get("k") == claims[0]
    assert keys.get("other") is None


def test_tokens_and_audit(store):
    tokens, audit = Tokens(store), Audit(store)
    assert not tokens.any()
    record, text = tokens.create("ada", Role.OPERATOR, by="test", at=1.0)
    assert tokens.holder(text) == record
    assert tokens.any()
    for wrong in ("", "x", "ratchet_", f"ratchet_{record.id}_", f"{text}x", text.replace("ratchet", "other")):
        assert tokens.holder(wrong) is None
    assert tokens.revoke(record.id, at=2.0) == tokens.revoke(record.id, at=3.0)
    assert (tokens.holder(text), tokens.any()) == (None, False)
    entry = audit.begin(at=1.0, who="ada", role="operator", origin="10.0.0.7", method="POST", path="/v1/runs")
    assert [call.status for call in audit.newest(limit=5)] == [None]
    audit.end(entry, 201)
    second = audit.begin(
        at=2.0, who="ada", role="operator", origin="10.0.0.7", method="POST", path="/v1/runs"
    )
    assert [(call.id, call.status) for call in audit.newest(limit=5)] == [(second, None), (entry, 201)]
    assert [call.id for call in audit.newest(limit=5, before=second)] == [entry]
