"""Filters: stale groups go, counted by cause, and an age that is not known is never guessed."""

from collections.abc import Sequence
from typing import Any

import pytest

from ratchet.data_plane.batch import BatchMeta
from ratchet.data_plane.errors import BadRequest
from ratchet.data_plane.filters import StalenessFilter, apply, load_filter
from ratchet.spec.faults import SpecError
from tests.unit.data_plane.conftest import PARTITION, Rig, a_group


class OddKeys:
    """A user's filter."""

    name = "odd"

    def __init__(self, *, loses: bool = False) -> None:
        self._loses = loses

    def split(self, batch: BatchMeta) -> tuple[BatchMeta, BatchMeta]:
        keep, drop = batch.partitioned(lambda group: group.key % 2 == 0)
        return keep, drop.slice(0, 0) if self._loses else drop


async def put(rig: Rig, versions: Sequence[Any]) -> BatchMeta:
    tags = [{} if version is ... else {"weight_version": version} for version in versions]
    return await rig.plane.put(PARTITION, [a_group(key, tags=each) for key, each in enumerate(tags)])


async def test_what_is_as_old_as_allowed_stays(rig: Rig) -> None:
    batch = await put(rig, [3, 7, 5, 4, 8])
    keep, drop = StalenessFilter(max_age=2, current=7).split(batch)
    assert (keep.keys, drop.keys) == ([1, 2, 4], [0, 3])
    assert batch.keys == [0, 1, 2, 3, 4]


async def test_what_is_dropped_is_evicted_and_counted_by_cause(rig: Rig) -> None:
    batch = await put(rig, [1, 5, 5, 5])
    await rig.plane.lease(PARTITION, "train", "a", batch.keys)
    kept = await apply(rig.plane, batch, [StalenessFilter(1, current=5), OddKeys()])
    assert kept.keys == [2]
    assert await rig.plane.list_groups(PARTITION) == [2]
    assert (await rig.plane.stats())[PARTITION]["evicted"] == {"stale": 1, "odd": 2}


@pytest.mark.parametrize("version", [..., None, 4.0, True, "4"])
async def test_an_age_that_is_not_known_is_refused_and_nothing_is_evicted(rig: Rig, version: Any) -> None:
    batch = await put(rig, [1, version])
    with pytest.raises(BadRequest, match=r"^group 1 has .*tag 'weight_version'"):
        await apply(rig.plane, batch, [OddKeys(), StalenessFilter(1, current=5)][::-1])
    assert await rig.plane.list_groups(PARTITION) == [0, 1]


@pytest.mark.parametrize("current", [None, 5.0, True])
def test_a_filter_has_to_know_what_is_current(current: Any) -> None:
    with pytest.raises(BadRequest, match="current of the filter 'stale'"):
        StalenessFilter(1, current)


async def test_a_filter_by_import_path(rig: Rig) -> None:
    batch = await put(rig, [1, 1, 1])
    mine = load_filter(f"{__name__}:OddKeys", {})
    assert (await apply(rig.plane, batch, [mine])).keys == [0, 2]


async def test_a_filter_that_loses_groups_is_refused(rig: Rig) -> None:
    batch = await put(rig, [1, 1, 1])
    with pytest.raises(BadRequest, match="the filter 'odd' made groups 0, 2 and none out of 0, 1, 2"):
        await apply(rig.plane, batch, [load_filter(f"{__name__}:OddKeys", {"loses": True})])
    assert await rig.plane.list_groups(PARTITION) == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stale", "allowed: module:Class"),
        ("no_such_module_here:Filter", "importing no_such_module_here fails"),
        ("ratchet.data_plane.filters:StalenesFilter", "did you mean StalenessFilter"),
    ],
)
def test_a_filter_that_is_not_there_is_named(name: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        load_filter(name, {})
