"""A pair's part depends on its source sentence and the seed, and on nothing else."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refuses import refuses

from regard.translation.pairs import Pair
from regard.translation.split import split

PAIRS = [Pair(f"sentence {number}", f"Satz {number}") for number in range(4000)]


def part_of(parts):
    return {pair: part for part in ("train", "valid", "test") for pair in getattr(parts, part)}


def test_shares_are_about_what_was_asked():
    parts = split(PAIRS, valid=0.1, test=0.2)
    assert len(parts.valid) == pytest.approx(400, abs=80)  # four standard deviations
    assert len(parts.test) == pytest.approx(800, abs=105)
    assert sorted([*parts.train, *parts.valid, *parts.test]) == sorted(PAIRS)


def test_this_very_split():
    """The parts of a corpus must not change from version to version: results would leak."""
    parts = split(PAIRS[:60], valid=0.05, test=0.05, seed=3)
    assert [pair.source for pair in parts.valid] == ["sentence 7", "sentence 9", "sentence 19"]
    assert [pair.source for pair in parts.test] == ["sentence 6", "sentence 23", "sentence 48", "sentence 59"]


def test_a_sentence_stays_in_its_part_however_it_is_written_or_translated():
    twins = [Pair(f" sentence\u00a0 {number}", f"Phrase {number}") for number in range(400)]
    where = part_of(split(PAIRS + twins, valid=0.2, test=0.2))
    assert all(where[twin] == where[pair] for twin, pair in zip(twins, PAIRS, strict=False))


@given(st.permutations(PAIRS[:60]), st.integers(30, 60))
def test_other_pairs_and_their_order_do_not_matter(shuffled, count):
    some = part_of(split(shuffled[:count], valid=0.3, test=0.3))
    assert some.items() <= part_of(split(PAIRS[:60], valid=0.3, test=0.3)).items()


def test_the_seed_matters_and_the_order_is_kept():
    first, second = (split(PAIRS[:300], valid=0.1, test=0.1, seed=seed) for seed in (0, 1))
    assert first.test != second.test
    assert list(first.train) == sorted(first.train, key=PAIRS.index)


def test_anything_with_a_source():
    class Longer(NamedTuple):
        source: str
        note: int

    parts = split((Longer(str(number), number) for number in range(100)), valid=0.2, test=0)
    assert parts.test == ()
    assert isinstance(parts.valid[0], Longer)


@pytest.mark.parametrize(
    ("shares", "argument", "word"),
    [
        ({"valid": -0.1}, "valid", "-0.1"),
        ({"test": 1.0}, "test", "1.0"),
        ({"valid": 0.5, "test": 0.5}, "valid, test", "0.5 and 0.5"),
        ({"valid": float("nan")}, "valid", "nan"),
    ],
)
def test_shares_that_make_no_sense(shares, argument, word):
    with refuses(argument, word):
        split(PAIRS, **shares)


def test_a_part_without_a_pair_is_refused():
    with refuses("valid", "of 3"):
        split(PAIRS[:3], valid=1e-9, test=0)
    with refuses("pairs", "of 0"):
        split([])
