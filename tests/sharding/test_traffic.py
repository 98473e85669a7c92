"""Byte counts against counts by hand; tests/sharding/scenarios.py compares the counts with the bytes sent."""

import pytest
import torch
from tests.refuses import refuses

from regard import Mask
from regard.sharding.layout import spans_of
from regard.sharding.traffic import ByteCounts, choose_travel, count_hops

# 10 queries and 100 keys of width 4, values of width 8, in bfloat16: 2 bytes a number, 4 while it is summed.
COUNTS = ByteCounts(
    query=10 * 4 * 2, key=100 * 4 * 2, value=100 * 8 * 2, output=10 * 8 * 2, log_mass=10 * 4, accumulation_factor=2
)


def test_keys_move_with_values_and_their_gradients_follow():
    assert COUNTS.bytes_per_hop("keys", backward=False) == 100 * (4 + 8) * 2
    assert COUNTS.bytes_per_hop("keys", backward=True) == 100 * (4 + 8) * (2 + 2 + 4)


def test_queries_are_followed_by_their_results():
    forward = 10 * (4 * 2 + 8 * 4 + 4)
    assert COUNTS.bytes_per_hop("queries", backward=False) == forward
    assert COUNTS.bytes_per_hop("queries", backward=True) == forward + 10 * (4 * 2 + 8 * 2 + 2 * 4 + 4 * 4)


def test_auto_moves_fewer_bytes():
    once = {"keys": 1, "queries": 1}
    assert choose_travel(COUNTS, once, "auto", backward=True) == "queries"
    assert choose_travel(COUNTS._replace(key=80, value=160), once, "auto", backward=False) == "keys"
    assert choose_travel(COUNTS, {"keys": 1, "queries": 50}, "auto", backward=False) == "keys"
    assert choose_travel(COUNTS, once, "keys", backward=True) == "keys"
    with refuses("travel", "'both'"):
        choose_travel(COUNTS, once, "both", backward=True)


@pytest.mark.parametrize(
    ("mask", "order", "hops"),
    [
        (None, "contiguous", {"keys": 7, "queries": 7}),
        (Mask.causal(), "contiguous", {"keys": 7, "queries": 7}),
        (Mask.causal(), "balanced", {"keys": 7, "queries": 7}),
        # The first query of a rank attends to 4 earlier keys, which the rank before holds.
        (Mask.window(4, 0), "contiguous", {"keys": 1, "queries": 7}),
        (Mask.window(5, 0), "contiguous", {"keys": 2, "queries": 7}),
        (Mask.window(0, 0), "contiguous", {"keys": 0, "queries": 0}),
        # Lengths do not reduce the hops: the ranks would have to compare their values.
        (Mask.window(4, 0) & Mask.lengths(torch.tensor(3)), "contiguous", {"keys": 1, "queries": 7}),
        (Mask.lengths(torch.tensor(3)), "contiguous", {"keys": 7, "queries": 7}),
    ],
)
def test_tensors_move_no_further_than_a_rank_needs_them(mask, order, hops):
    spans = tuple(spans_of([4] * 8, order, "keys"))
    placed = None if mask is None else mask.place(batch=(), queries=32, keys=32, device=torch.device("cpu"))
    assert count_hops(placed, spans, spans) == hops
