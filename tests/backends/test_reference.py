"""The reference computes the equations: compared with the oracle, and some queries with the same rows of all."""

import numpy as np
import pytest
import torch
from tests import bounds, oracle
from tests.contracts.agreement import Case, build
from tests.contracts.cases import MASKS, SCORES, array
from tests.contracts.judged import KEYS, QUERIES, misjudged

import regard
from regard.attention.prepare import Options, prepare
from regard.backends import reference
from regard.backends.base import Plan, Problem
from regard.scores.dot import DotPair
from regard.scores.names import NAMED_SCORES, SIZED_SCORES


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_reference_agrees_with_the_oracle(score, mask):
    assert misjudged(score, mask) == []


@pytest.mark.parametrize("name", [*NAMED_SCORES, *SIZED_SCORES])
def test_gradients_agree_with_central_differences_of_the_oracle(name):
    """A number made of output and log_mass, changed in every entry of query, key and value."""
    call = build(Case(name, "top_left", torch.float64, 3, 3), torch.float64)
    query, key, value = (x[:1, :1].detach().requires_grad_() for x in (call.query, call.key, call.value))
    grad_output, grad_log_mass = call.grad_output[0, 0], call.grad_log_mass[0, 0]
    record = regard.inspect(query, key, value, call.score, call.mask, backend="reference")
    number = (record.output[0, 0] * grad_output).sum() + (record.log_mass[0, 0] * grad_log_mass).sum()
    found = torch.autograd.grad(number, (query, key, value), allow_unused=True, materialize_grads=True)

    arrays = [array(x)[0, 0].copy() for x in (query, key, value)]
    formula = SCORES[name].formula(call.score)

    def judge():
        pooled = oracle.pool(formula, *arrays, allowed=oracle.causal(3, 3))
        return (pooled.output * grad_output.numpy()).sum() + (pooled.log_mass * grad_log_mass.numpy()).sum()

    for gradient, expected in zip(found, oracle.central_difference(judge, arrays), strict=True):
        np.testing.assert_allclose(gradient[0, 0].numpy(), expected, atol=1e-8)


def test_softmax_gradient_agrees_with_the_formula():
    """dS = P (dO'v - dO'o + dlog_mass): read off as the gradient of a bias on every pair."""
    call = build(Case("gaussian", "causal", torch.float64, QUERIES, KEYS), torch.float64)
    record = regard.inspect(
        call.query, call.key, call.value, call.score, call.mask, bias=call.bias, backend="reference"
    )
    cotangents = (call.grad_output, call.grad_log_mass)
    (found,) = torch.autograd.grad((record.output, record.log_mass), call.bias, cotangents)
    for at in np.ndindex(*call.bias.shape[:2]):
        parts = (x.detach()[at].numpy() for x in (record.weights(), call.value, record.output, *cotangents))
        expected = torch.from_numpy(oracle.softmax_gradient(*parts))
        bounds.assert_close(found[at], expected, bounds.roundings(expected, 64))


@pytest.mark.parametrize("need", ["output", "log_mass", "weights"])
def test_reference_accepts_every_problem_and_need(need):
    empty = torch.zeros(0, 0, 0)
    assert isinstance(reference.Reference().plan(Problem(DotPair(empty, empty, 1.0), empty), need), Plan)


def test_half_precision_accumulates_in_float32():
    """A thousand values of 1 and one of 1000: in half precision the sum of the weights would stop growing."""
    query, key = torch.zeros(1, 1, dtype=torch.bfloat16), torch.zeros(4096, 1, dtype=torch.bfloat16)
    value = torch.ones(4096, 1, dtype=torch.bfloat16)
    record = regard.inspect(query, key, value, "dot", backend="reference")
    assert record.output.item() == 1.0
    assert record.log_mass.dtype == torch.float32
    bounds.assert_same(record.log_mass, torch.tensor([4096.0], dtype=torch.float64).log())


def problem_of(name, mask="keep"):
    call = build(Case(name, mask, torch.float64, 5, 7), torch.float64)
    return prepare(call.query, call.key, call.value, call.score, Options(mask=call.mask, bias=call.bias))


@pytest.mark.parametrize("rows", [slice(1, 4), torch.tensor([4, 0, 0])], ids=["slice", "positions"])
@pytest.mark.parametrize("mask", MASKS)
def test_scores_of_rows_are_rows_of_scores(mask, rows):
    problem = problem_of("gaussian", mask)
    bounds.assert_same(reference.masked_scores(problem, rows), reference.masked_scores(problem)[..., rows, :])


@pytest.mark.parametrize("name", SCORES)
def test_attention_of_rows_is_rows_of_attention(name):
    problem = problem_of(name)
    whole, part = reference.attention(problem), reference.attention(problem, slice(2, 5))
    bounds.assert_same(part.output, whole.output[..., 2:5, :])
    bounds.assert_same(part.log_mass, whole.log_mass[..., 2:5])
    bounds.assert_same(part.weights, whole.weights[..., 2:5, :])


def test_widths_per_query_are_selected_with_the_rows():
    problem = problem_of("gaussian", "none")
    widths = torch.rand(1, 1, 5, 1, dtype=torch.float64) + 0.5
    pair = problem.pair
    problem = problem._replace(pair=pair.replace(pair.query, pair.key, widths))
    rows = torch.tensor([3, 1])
    bounds.assert_same(reference.masked_scores(problem, rows), reference.masked_scores(problem)[..., rows, :])


def test_softmax_over_no_keys_has_log_mass_minus_infinity():
    weights, log_mass = reference.softmax(torch.zeros(2, 3, 0))
    assert weights.shape == (2, 3, 0)
    assert (log_mass == -torch.inf).all()


def test_softmax_of_huge_scores_does_not_overflow():
    weights, log_mass = reference.softmax(torch.tensor([[1e4, 1e4 - 1], [-1e4, -1e4 - 1]]))
    assert weights.isfinite().all()
    bounds.assert_same(weights[0], weights[1])
    bounds.assert_same(log_mass, torch.tensor([1e4, -1e4]) + torch.tensor(1 + torch.e**-1.0).log())


def test_nan_scores_give_nan_weights_and_log_mass():
    weights, log_mass = reference.softmax(torch.tensor([[float("nan"), 0.0]]))
    assert weights.isnan().all()
    assert log_mass.isnan().all()


@pytest.mark.parametrize("need", ["output", "log_mass", "weights"])
def test_dropout_leaves_weights_and_log_mass_as_they_are(need):
    problem = problem_of("gaussian", "none")
    dropped = reference.Reference().plan(problem, need).run(problem._replace(dropout=0.5))
    whole = reference.attention(problem)
    assert torch.equal(dropped.weights, whole.weights)
    assert torch.equal(dropped.log_mass, whole.log_mass)
    assert not torch.equal(dropped.output, whole.output)
