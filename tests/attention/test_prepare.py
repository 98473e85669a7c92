"""Every check of a call: what is refused, in which words, and what prepared problems hold."""

import math

import pytest
import torch
from tests.refuses import refuses

import regard
from regard import Mask
from regard.attention.prepare import Options, prepare
from regard.backends import reference

QUERY, KEY, VALUE = torch.randn(2, 5, 4), torch.randn(2, 7, 4), torch.randn(2, 7, 3)


def test_a_bias_gets_the_rank_of_the_batch():
    problem = prepare(QUERY, KEY, VALUE, "dot", Options(bias=torch.zeros(7)))
    assert problem.bias.shape == (1, 1, 7)


def test_without_mask_and_bias_the_problem_holds_the_inputs_themselves():
    problem = prepare(QUERY, KEY, VALUE, "dot", Options())
    assert problem.pair.query is QUERY
    assert problem.pair.key is KEY
    assert problem.value is VALUE
    assert problem.sink is None


@pytest.mark.parametrize(
    ("bias", "argument", "word"),
    [
        (torch.zeros(8), "bias", "shape (8,)"),
        (torch.zeros(5, 1, 7), "bias", "shape"),
        (torch.zeros(1, 2, 5, 7), "bias", "shape"),
        (torch.zeros(7, dtype=torch.bool), "bias", "bool"),
        (torch.zeros(7, dtype=torch.int64), "bias", "int64"),
        ([0.0] * 7, "bias", "list"),
        (1.0, "bias", "float"),
        (torch.zeros(7, device="meta"), "bias", "float32"),
    ],
    ids=str,
)
def test_a_bias_that_cannot_be_added_is_refused(bias, argument, word):
    with refuses(argument, word):
        regard.attend(QUERY, KEY, VALUE, bias=bias)


@pytest.mark.parametrize("result", [None, 3, torch.zeros(5, 6), torch.zeros(3, 5, 7), torch.zeros(1, 1, 5, 7)], ids=str)
@pytest.mark.parametrize("backend", ["auto", "reference", "blocked"])
def test_a_callable_that_returns_no_tile_is_refused(result, backend):
    with refuses("score", "(2, 5, 7)"):
        regard.attend(QUERY, KEY, VALUE, lambda q, k: result, backend=backend)
    with refuses("bias", "callable"):
        regard.attend(QUERY, KEY, VALUE, bias=lambda i, j: result, backend=backend)


def test_a_callable_that_returns_truth_values_is_refused():
    with refuses("score", "bool"):
        regard.attend(QUERY, KEY, VALUE, lambda q, k: torch.ones(5, 7, dtype=torch.bool))
    with refuses("bias", "bool"):
        regard.attend(QUERY, KEY, VALUE, bias=lambda i, j: i[:, None] >= j)


@pytest.mark.parametrize(
    "dropout", [-0.1, 1.1, math.nan, "0.5", None, True, False, [], torch.zeros(2), torch.tensor(0.5)]
)
def test_a_dropout_that_is_no_probability_is_refused(dropout):
    with refuses("dropout", "between 0", "and 1"):
        regard.attend(QUERY, KEY, VALUE, dropout=dropout)


@pytest.mark.parametrize("dropout", [0, 1, 0.0, 1.0, 0.5])
def test_every_probability_is_a_dropout(dropout):
    assert regard.attend(QUERY, KEY, VALUE, dropout=dropout).shape == (2, 5, 3)


@pytest.mark.parametrize("tolerance", [0, -1e-3, math.nan, "1e-3", True, torch.zeros(2)])
def test_a_tolerance_that_is_not_positive_is_refused(tolerance):
    with refuses("tolerance", "positive", "number"):
        regard.attend(QUERY, KEY, VALUE, tolerance=tolerance)


@pytest.mark.parametrize("backend", ["cuda", "", None, 3, [], {}, ("blocked",)])
def test_a_backend_that_is_not_listed_is_refused(backend):
    with refuses("backend", '"auto"'):
        regard.attend(QUERY, KEY, VALUE, backend=backend)


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (torch.ones(5, 7, dtype=torch.bool), 'Write Mask.keep(m) if True means "may attend"'),
        (torch.tensor([3, 4]), "Write Mask.lengths(t)"),
        (torch.zeros(5, 7), "pass them as bias="),
        (True, "Write Mask.causal()"),
        ("causal", "Write Mask.causal()"),
    ],
    ids=str,
)
def test_a_bare_mask_is_refused_with_the_word_to_use(mask, text):
    with refuses("mask", text):
        regard.attend(QUERY, KEY, VALUE, mask=mask)


def test_a_causal_mask_of_unequal_sizes_is_refused_until_it_is_aligned():
    with refuses("Mask.causal()", "5 queries and", "7 keys"):
        regard.attend(QUERY, KEY, VALUE, mask=Mask.causal())
    assert regard.attend(QUERY, KEY, VALUE, mask=Mask.causal(align="lower_right")).shape == (2, 5, 3)


def test_positions_given_to_a_callable_bias_start_at_the_first_query():
    asked = []

    def bias(queries, keys):
        asked.append((queries.tolist(), keys.tolist()))
        return torch.zeros(len(queries), len(keys))

    problem = prepare(QUERY, KEY, VALUE, "dot", Options(bias=bias, first_query=2))
    reference.attention(problem)
    assert asked == [([2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6])]


@pytest.mark.parametrize("backend", ["auto", "torch", "blocked", "reference"])
def test_heads_of_a_score_that_do_not_fit_the_values_are_refused(backend):
    score = regard.scores.Bilinear(3, 3, heads=2)
    with refuses("score", "batch", "axes"):
        regard.attend(torch.randn(1, 4, 3), torch.randn(1, 5, 3), torch.randn(3, 5, 2), score, backend=backend)
