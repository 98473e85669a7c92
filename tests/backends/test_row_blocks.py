"""Blocks of queries: callable scores, callable biases and new closed forms, recomputed in the backward pass."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests import bounds
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard import Mask
from regard.attention.prepare import Options, prepare
from regard.backends import row_blocks
from regard.scores.base import PairScore, Score, align_batch
from regard.testing import CASES, check_backend, check_score, dispatch_log


def problem_of(queries, keys=7, dim=3, score="gaussian", batch=2):
    tokens = torch.randn(batch, queries, dim), torch.randn(batch, keys, dim), torch.randn(batch, keys, 2)
    return prepare(*tokens, score, Options())


@pytest.mark.parametrize("elements", [1, 43, 210, 10**6])
def test_blocks_cover_every_query_once_in_order(elements, set_limits):
    set_limits(row_block_elements=elements, row_block_queries=1)
    rows = [row for block in row_blocks.row_blocks(problem_of(13)) for row in range(block.start, block.stop)]
    assert rows == list(range(13))


def test_blocks_stay_within_the_element_limit(set_limits):
    set_limits(row_block_elements=4 * 2 * 7 * 3 + 1, row_block_queries=1)
    assert [block.stop - block.start for block in row_blocks.row_blocks(problem_of(13))] == [4, 4, 4, 1]


def test_no_queries_give_one_empty_block():
    assert row_blocks.row_blocks(problem_of(0)) == [slice(0, 0)]


def test_blocks_are_not_checkpointed_without_gradients(monkeypatch, set_limits):
    set_limits(row_block_elements=1, row_block_queries=1)
    monkeypatch.setattr(row_blocks, "checkpoint", None)
    with torch.no_grad():
        parts = row_blocks.map_rows(lambda rows: (torch.tensor(rows.start),), problem_of(3))
    assert [int(part) for (part,) in parts] == [0, 1, 2]


@pytest.mark.parametrize("elements", [1, 100])
def test_many_blocks_give_the_result_of_one_block(elements, set_limits):
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


def test_callable_bias_gets_the_positions_of_each_block(set_limits):
    set_limits(row_block_elements=1, row_block_queries=1)
    asked = []

    def bias(queries, keys):
        asked.append((queries.tolist(), keys.tolist()))
        return torch.zeros(len(queries), len(keys))

    regard.attend(torch.randn(3, 2), torch.randn(2, 2), torch.randn(2, 2), bias=bias, backend="blocked")
    assert asked == [([0], [0, 1]), ([1], [0, 1]), ([2], [0, 1])]


def test_saved_tensors_do_not_grow_with_queries_times_keys(set_limits):
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
def test_callable_draws_the_same_random_numbers_in_the_backward_pass(set_limits, part):
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


# --- A closed form that no backend has code for ------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class ManhattanPair(PairScore):
    """Minus the weighted sum of |q_i - k_i|; weight: (*batch or 1, 1, dim)."""

    kind: ClassVar[str] = "custom"

    weight: Tensor

    def scores(self, rows=None, allowed=None):
        """Return minus the weighted distance of every pair."""
        del allowed
        query, key = self._tokens(rows)
        difference = (query.unsqueeze(-2) - key.unsqueeze(-3)).abs()
        return -(difference * self.weight.to(query.dtype).unsqueeze(-2)).sum(-1)

    def replace(self, query, key, *parameters):
        """Return the same score for other tensors."""
        return type(self)(query, key, *parameters)

    def parameters(self):
        """Return the weight."""
        return (self.weight,)


class Manhattan(Score):
    """A new score with one weight per dimension, which is a parameter."""

    def __init__(self, dim: int = 5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.3, 1.4, dim))

    def pair(self, query, key):
        """Return the closed form."""
        return ManhattanPair(query, key, align_batch(self.weight, query))


def test_new_closed_form_passes_check_score():
    score = Manhattan()
    weight = score.weight.detach().double().numpy()
    assert check_score(score, lambda q, k: -float(np.sum(weight * np.abs(q - k)))) == []


def test_check_score_rejects_a_new_closed_form_with_another_formula():
    failures = check_score(Manhattan(), lambda q, k: -float(np.sum(np.abs(q - k))))
    assert any("against the formula" in line for line in failures)


def test_new_closed_form_runs_in_reference_and_blocked_only():
    tokens = [torch.randn(2, n, 5) for n in (4, 6, 6)]
    assert PairScore.kind == Manhattan().pair(*tokens[:2]).kind == "custom"
    refusals = regard.why(*tokens, Manhattan()).refusals
    assert refusals["torch"] == "it computes dot products and Gaussian scores only"
    assert refusals["triton"] == "it supports distance scores and additive scores only"
    for backend in ("auto", "reference", "blocked"):
        with dispatch_log() as ran:
            regard.attend(*tokens, Manhattan(), backend=backend)
        assert ran == ["reference" if backend == "auto" else backend]


@pytest.mark.parametrize("elements", [1, 10**6], ids=["one row each", "one block"])
def test_new_closed_form_has_the_results_and_gradients_of_the_reference(elements, set_limits):
    """Over masks, dtypes, heads that share keys, and a bias; the weight of the score has a gradient, too."""
    set_limits(row_block_elements=elements, row_block_queries=1)
    cases = [
        case._replace(draw=lambda draw=case.draw: draw()._replace(score=Manhattan()))
        for case in CASES
        if case.name.startswith("gaussian,")
    ]
    assert len(cases) == 16
    assert {"output", "log_mass", "query", "key", "value", "weight"} <= cases[0].tolerances().keys()
    assert check_backend("blocked", cases) == []


def test_memory_of_a_new_closed_form_is_that_of_one_block(set_limits):
    set_limits(row_block_elements=1, row_block_queries=1)
    heights = []

    class Spied(ManhattanPair):
        def scores(self, rows=None, allowed=None):
            heights.append(rows.stop - rows.start)
            return super().scores(rows, allowed)

    class SpiedScore(Manhattan):
        def pair(self, query, key):
            return Spied(query, key, align_batch(self.weight, query))

    query = torch.randn(2, 4, 5, requires_grad=True)
    output = regard.attend(query, query, query, SpiedScore(), Mask.causal(), backend="blocked")
    assert heights == [1] * 4
    output.sum().backward()
    assert heights == [1] * 8  # each block once more for its gradients


@pytest.mark.parametrize("score", [Manhattan(), lambda q, k: (q @ k.mT).tanh()], ids=["closed form", "callable"])
@pytest.mark.parametrize("elements", [1, 10**6], ids=["one row each", "one block"])
@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_sums_are_in_full_precision_under_autocast(score, elements, backend, set_limits):
    """The results and gradients are those of inputs that were cast by hand."""
    set_limits(row_block_elements=elements, row_block_queries=1)
    leaves = [torch.randn(2, n, 5, requires_grad=True) for n in (4, 300, 300)]
    grad = torch.randn(2, 4, 5)

    def with_gradients(record):
        loss = (record.output.float() * grad).sum() + record.log_mass.sum()
        return [record.output, record.log_mass, *torch.autograd.grad(loss, leaves)]

    with torch.autocast("cpu", torch.bfloat16):
        record = regard.inspect(*leaves, score, backend=backend)
    found = with_gradients(record)
    cast = [x.bfloat16() for x in leaves]
    expected = with_gradients(regard.inspect(*cast, score, backend=backend))
    assert found[0].dtype == torch.bfloat16
    assert found[1].dtype == torch.float32
    for left, right in zip(found, expected, strict=True):
        assert torch.equal(left, right)
