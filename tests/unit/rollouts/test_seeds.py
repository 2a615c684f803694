"""Seeds depend on what is sampled and on nothing else."""

from itertools import product

from ratchet.rollouts.seeds import sample_seed


def test_seeds_fit_63_bits_and_differ() -> None:
    where = list(product((0, 1), range(100), range(8), ("train", "evaluate")))
    seeds = {sample_seed(*place) for place in where}
    assert len(seeds) == len(where)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_never_change() -> None:
    # Another value here would give every existing run other samples.
    assert sample_seed(0, 0, 0) == 3942096195653408914
    assert sample_seed(7, 12, 3, "evaluate") == 4693793157118678052
