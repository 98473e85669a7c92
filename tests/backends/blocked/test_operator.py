"""Dropout of `blocked` under transforms, and gradients that its operator refuses."""

import pytest
import torch
from tests.refuses import refuses

import regard

SCORES = {
    "scaled_dot": lambda: "scaled_dot",
    "gaussian": lambda: "gaussian",
    "additive": lambda: regard.scores.Additive(3, 3, 5).double(),
}


@pytest.mark.parametrize("name", SCORES)
def test_dropout_is_the_same_where_only_the_backward_pass_is_mapped(name):
    query, key, value = (torch.randn(n, 3, dtype=torch.float64) for n in (4, 5, 5))
    score = SCORES[name]()

    def pooled(value):
        torch.manual_seed(5)
        return regard.attend(query, key, value, score, dropout=0.5, backend="blocked")

    jacobian = torch.func.jacrev(pooled)(value)  # pooling is linear in its values
    torch.testing.assert_close(torch.einsum("abcd,cd->ab", jacobian, value), pooled(value))


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_mapped_examples_share_their_dropout_if_asked_to(name, randomness):
    query = torch.randn(1, 7, 3, dtype=torch.float64).expand(3, -1, -1)
    key, value = torch.randn(9, 3, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    score = SCORES[name]()
    found = torch.vmap(
        lambda query: regard.attend(query, key, value, score, dropout=0.5, backend="blocked"), randomness=randomness
    )(query)
    assert torch.allclose(found[0], found[1]) == (randomness == "same")


def test_gradients_in_batches_are_refused_with_a_way_out():
    query, key, value = torch.randn(5, 3), torch.randn(6, 3), torch.randn(6, 2)

    def pooled(query):
        return regard.attend(query, key, value, "gaussian", backend="blocked")

    with refuses("backend", "torch.func.jacrev"):
        torch.autograd.functional.jacobian(pooled, query, vectorize=True)
    assert torch.func.jacrev(pooled)(query).shape == (5, 2, 5, 3)
