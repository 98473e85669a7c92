"""The reference is what the equations say: judged by the oracle, for every score, mask and bias."""

import numpy as np
import pytest
import torch
from tests import bounds, oracle
from tests.contracts.agreement import Case, build
from tests.contracts.cases import MASKS, SCORES, array
from tests.contracts.judged import KEYS, QUERIES, misjudged

import regard
from regard.backends import reference
from regard.backends.problem import Problem
from regard.scores.forms import DotForm
from regard.scores.names import WITH_SIZES, WITHOUT_SIZES


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_the_reference_agrees_with_the_oracle(score, mask):
    assert misjudged(score, mask) == []


@pytest.mark.parametrize("name", [*WITHOUT_SIZES, *WITH_SIZES])
def test_gradients_of_the_reference_are_the_oracles_differences(name):
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


def test_the_softmax_gradient_of_the_reference_is_the_formulas():
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


def test_the_reference_refuses_nothing():
    empty = torch.zeros(0, 0, 0)
    assert reference.refuse(Problem(DotForm(empty, empty, 1.0), empty), True) is None


def test_accumulation_is_in_float32_for_half_precision():
    """A thousand values of 1 and one of 1000: in half precision the sum of the weights would stop growing."""
    query, key = torch.zeros(1, 1, dtype=torch.bfloat16), torch.zeros(4096, 1, dtype=torch.bfloat16)
    value = torch.ones(4096, 1, dtype=torch.bfloat16)
    record = regard.inspect(query, key, value, "dot", backend="reference")
    assert record.output.item() == 1.0
    assert record.log_mass.dtype == torch.float32
    bounds.assert_same(record.log_mass, torch.tensor([4096.0], dtype=torch.float64).log())
