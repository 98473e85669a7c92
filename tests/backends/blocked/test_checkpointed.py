"""Scores and biases that are code run by blocks of queries, recomputed backward."""

import pytest
import torch
from tests import bounds
from torch.nn import functional

import regard
from regard.backends.blocked import checkpointed
from regard.backends.blocked.checkpointed import by_rows, row_blocks
from regard.pooling.prepare import Settings, prepare


def problem_of(queries, keys=7, dim=3, score="gaussian", batch=2):
    tokens = torch.randn(batch, queries, dim), torch.randn(batch, keys, dim), torch.randn(batch, keys, 2)
    return prepare(*tokens, score, Settings())[0]


@pytest.mark.parametrize("elements", [1, 43, 210, 10**6])
def test_blocks_cover_every_query_once_in_order(elements, set_limits):
    set_limits(row_block_elements=elements, row_block_queries=1)
    rows = [row for block in row_blocks(problem_of(13)) for row in range(block.start, block.stop)]
    assert rows == list(range(13))


def test_a_block_keeps_to_its_budget(set_limits):
    set_limits(row_block_elements=4 * 2 * 7 * 3 + 1, row_block_queries=1)
    assert [block.stop - block.start for block in row_blocks(problem_of(13))] == [4, 4, 4, 1]


def test_no_queries_are_one_empty_block():
    assert row_blocks(problem_of(0)) == [slice(0, 0)]


def test_without_gradients_nothing_is_recomputed(monkeypatch, set_limits):
    set_limits(row_block_elements=1, row_block_queries=1)
    monkeypatch.setattr(checkpointed, "checkpoint", None)
    with torch.no_grad():
        parts = by_rows(lambda rows: (torch.tensor(rows.start),), problem_of(3))
    assert [int(part) for (part,) in parts] == [0, 1, 2]


@pytest.mark.parametrize("elements", [1, 100])
def test_any_number_of_blocks_gives_the_result_of_one(elements, set_limits):
    query, key, value = (torch.randn(2, n, 3, dtype=torch.float64).requires_grad_() for n in (13, 7, 7))
    scale = torch.randn((), dtype=torch.float64, requires_grad=True)

    def results():
        record = regard.inspect(query, key, value, lambda q, k: scale.exp() * q @ k.mT, backend="blocked")
        loss = record.output.square().sum() + record.log_mass.sum()
        return record.output, record.log_mass, *torch.autograd.grad(loss, (query, key, value, scale))

    whole = results()
    set_limits(row_block_elements=elements, row_block_queries=1)
    for found, expected in zip(results(), whole, strict=True):
        bounds.assert_close(found, expected, bounds.roundings(expected, 64))


def test_a_callable_bias_gets_the_positions_of_its_block(set_limits):
    set_limits(row_block_elements=1, row_block_queries=1)
    asked = []

    def bias(queries, keys):
        asked.append((queries.tolist(), keys.tolist()))
        return torch.zeros(len(queries), len(keys))

    regard.attend(torch.randn(3, 2), torch.randn(2, 2), torch.randn(2, 2), bias=bias, backend="blocked")
    assert asked == [([0], [0, 1]), ([1], [0, 1]), ([2], [0, 1])]


def test_only_one_block_of_a_callable_is_alive_at_a_time(set_limits):
    """What autograd saves between forward and backward does not grow with queries times keys."""

    def saved(queries):
        kept = 0

        def pack(tensor):
            nonlocal kept
            kept += tensor.numel()
            return tensor

        query, key = torch.randn(queries, 3, requires_grad=True), torch.randn(97, 3)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            regard.attend(query, key, key, lambda q, k: (q @ k.mT).tanh(), backend="blocked")
        return kept

    set_limits(row_block_elements=97 * 3 * 4, row_block_queries=1)
    assert saved(16) < 97 * 16


@pytest.mark.parametrize("part", ["score", "bias"])
def test_code_that_draws_numbers_draws_the_same_ones_backward(set_limits, part):
    set_limits(row_block_elements=1, row_block_queries=1)
    query, key, value = (torch.randn(n, 3, dtype=torch.float64).requires_grad_() for n in (5, 7, 7))
    code = {
        "score": {"score": lambda q, k: functional.dropout(q @ k.mT)},
        "bias": {"bias": lambda q, k: 3 * torch.rand(len(q), len(k)).double()},
    }[part]

    def pooled(query):
        torch.manual_seed(7)
        return regard.attend(query, key.detach(), value.detach(), backend="blocked", **code)

    assert torch.autograd.gradcheck(pooled, query)
