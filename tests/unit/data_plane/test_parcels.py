"""Parcels: whatever is packed together comes apart again."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.data_plane.transfer_queue.parcels import PACKED, Packing, num_small, parcels

LARGE, PARCEL = 4096, 16384
PACKING = Packing(LARGE, PARCEL, reuses=True)

SIZES = st.one_of(
    st.integers(1, 300),
    st.integers(LARGE // 3, LARGE),
    st.sampled_from([LARGE - 1, LARGE, LARGE + 1, PARCEL + 1]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), SIZES, min_size=1), max_size=12), st.randoms())
def test_every_cell_is_cut_out_of_its_parcel_as_it_went_in(sizes, chance) -> None:
    rng = np.random.default_rng(chance.randrange(2**32))
    cells = [{name: rng.integers(0, 256, size, np.uint8) for name, size in each.items()} for each in sizes]
    seen: list[int] = []
    memory = np.empty(num_small(cells, PACKING) + 5, np.uint8)
    for row, parcel in enumerate(parcels(cells, PACKING, memory)):
        assert len(parcel.members) == 1 or sum(cell.nbytes for cell in parcel.fields.values()) <= PARCEL
        for member, locator in zip(parcel.members, parcel.located(row), strict=True):
            seen.append(member)
            assert (locator.row, locator.slots) == (row, len(parcel.members))
            assert locator.fields == tuple(parcel.fields)
            for name, cell in cells[member].items():
                if span := locator.spans.get(name):
                    assert np.array_equal(parcel.fields[PACKED][span[0] : span[1]], cell)
                else:
                    assert parcel.fields[name] is cell  # not copied
                    assert cell.nbytes >= LARGE
    assert sorted(seen) == list(range(len(cells)))
