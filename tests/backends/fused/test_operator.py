"""The operators behind the fused kernels keep torch's contract for operators, and callers can be transformed."""

import pytest
import torch
from tests import bounds
from tests.refuses import refuses
from torch.func import vmap

import regard
from regard.backends.fused.conditions import ANYWHERE
from regard.backends.fused.operator import OPERATOR

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def tensors(*batch, dim=2, requires_grad=False):
    shapes = (*batch, 5, dim), (*batch, 7, dim), (*(1 for _ in batch), 1, 1), (*batch, 7, 3), (*batch, 1, 7)
    made = [torch.rand(shape) + (number == 2) for number, shape in enumerate(shapes)]
    return [x.requires_grad_(requires_grad) for x in made]


@pytest.mark.parametrize("dim", [2, 17])
def test_the_forward_operator_passes_the_checks_of_torch(dim):
    arguments = tensors(2, dim=dim, requires_grad=True), "gaussian", [-(2**30), 0, 1, 0]
    assert set(torch.library.opcheck(OPERATOR.forward, arguments).values()) == {"SUCCESS"}


def test_the_backward_operator_passes_the_checks_of_torch():
    inputs, settings = tensors(2), ("triangular", list(ANYWHERE))
    results = OPERATOR.forward(inputs, *settings)
    cotangents = [torch.randn_like(x) for x in results[:2]]
    arguments = [*cotangents, *results], inputs, *settings, [True] * 5
    assert set(torch.library.opcheck(OPERATOR.backward, arguments).values()) == {"SUCCESS"}


def test_gradients_that_nobody_needs_come_back_empty():
    inputs = tensors(2)
    results = OPERATOR.forward(inputs, "gaussian", list(ANYWHERE))
    needs = [False, True, False, False, True]
    ones = [torch.ones_like(x) for x in results[:2]]
    found = OPERATOR.backward([*ones, *results], inputs, "gaussian", list(ANYWHERE), needs)
    assert [gradient.numel() > 0 for gradient in found] == needs


def test_a_second_derivative_is_refused():
    query, key, _, value, _ = tensors(requires_grad=True)
    output = regard.attend(query, key, value, "gaussian", backend="triton")
    (first,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    with refuses("backend", "derivative", "through", "second"):
        first.sum().backward()


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 1, 0)], ids=str)
def test_vmap_is_a_loop_over_the_mapped_axis(in_dims):
    query, key, _, value, _ = tensors(2)
    tokens = [
        x if dim is None else torch.stack([x, 2 * x], dim) for x, dim in zip((query, key, value), in_dims, strict=True)
    ]

    def gradient(query, key, value):
        def pooled(query):
            return regard.attend(query, key, value, "gaussian", backend="triton").square().sum()

        return torch.func.grad(pooled)(query)

    found = vmap(gradient, in_dims)(*tokens)
    for at in range(2):
        one = [x if dim is None else x.select(dim, at) for x, dim in zip(tokens, in_dims, strict=True)]
        bounds.assert_same(found[at], gradient(*one))


def test_a_compiled_caller_has_one_graph():
    query, key, _, value, _ = tensors(2, requires_grad=True)

    def pooled(query, key, value):
        return regard.attend(query, key, value, "gaussian", backend="triton") * 2

    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")(query, key, value)
    eager = pooled(query, key, value)
    assert torch.equal(compiled, eager)
    found, wanted = (torch.autograd.grad(x.sum(), (query, key, value)) for x in (compiled, eager))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
