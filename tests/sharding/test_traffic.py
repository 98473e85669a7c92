"""Bytes are counted by hand here; tests/sharding/stories.py compares the count with what is really sent."""

import pytest
import torch
from tests.refuses import refuses

from regard import Mask
from regard.sharding.order import runs_of
from regard.sharding.traffic import Load, choose, hops_of

# 10 queries and 100 keys of width 4, values of width 8, in bfloat16: 2 bytes a number, 4 while it is summed.
LOAD = Load(query=10 * 4 * 2, key=100 * 4 * 2, value=100 * 8 * 2, output=10 * 8 * 2, number=10 * 4, wider=2)


def test_keys_travel_with_values_and_their_gradients_follow():
    assert LOAD.a_hop("keys", backward=False) == 100 * (4 + 8) * 2
    assert LOAD.a_hop("keys", backward=True) == 100 * (4 + 8) * (2 + 2 + 4)


def test_queries_are_followed_by_what_they_pooled():
    forward = 10 * (4 * 2 + 8 * 4 + 4)
    assert LOAD.a_hop("queries", backward=False) == forward
    assert LOAD.a_hop("queries", backward=True) == forward + 10 * (4 * 2 + 8 * 2 + 2 * 4 + 4 * 4)


def test_whichever_moves_fewer_bytes_travels():
    once = {"keys": 1, "queries": 1}
    assert choose(LOAD, once, "auto", backward=True) == "queries"
    assert choose(LOAD._replace(key=80, value=160), once, "auto", backward=False) == "keys"
    assert choose(LOAD, {"keys": 1, "queries": 50}, "auto", backward=False) == "keys"
    assert choose(LOAD, once, "keys", backward=True) == "keys"
    with refuses("travel", "'both'"):
        choose(LOAD, once, "both", backward=True)


@pytest.mark.parametrize(
    ("mask", "order", "hops"),
    [
        (None, "contiguous", {"keys": 7, "queries": 7}),
        (Mask.causal(), "contiguous", {"keys": 7, "queries": 7}),
        (Mask.causal(), "balanced", {"keys": 7, "queries": 7}),
        # A rank's first query sees 4 keys back, which are those of the rank before.
        (Mask.window(4, 0), "contiguous", {"keys": 1, "queries": 7}),
        (Mask.window(5, 0), "contiguous", {"keys": 2, "queries": 7}),
        (Mask.window(0, 0), "contiguous", {"keys": 0, "queries": 0}),
        # What lengths hide is no reason to stop: ranks would have to agree on the numbers.
        (Mask.window(4, 0) & Mask.lengths(torch.tensor(3)), "contiguous", {"keys": 1, "queries": 7}),
        (Mask.lengths(torch.tensor(3)), "contiguous", {"keys": 7, "queries": 7}),
    ],
)
def test_parcels_travel_no_farther_than_somebody_needs_them(mask, order, hops):
    runs = tuple(runs_of([4] * 8, order, "keys"))
    placed = None if mask is None else mask.place(batch=(), queries=32, keys=32, device=torch.device("cpu"))
    assert hops_of(placed, runs, runs) == hops
