"""The operator of distances passes the checks of torch for operators, and its callers can be transformed."""

import pytest
import torch
from tests import bounds
from torch.func import vmap

import regard
from regard import Mask
from regard.attention.prepare import Options, prepare
from regard.backends.encoding import flatten
from regard.backends.triton.distance import OPERATOR

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def tokens(*batch, dim=2, requires_grad=False):
    shapes = (*batch, 5, dim), (*batch, 7, dim), (*batch, 7, 3)
    return [torch.rand(shape, requires_grad=requires_grad) for shape in shapes]


def arguments(score, *batch, dim=2, mask=None, requires_grad=False):
    """Return the arguments of the forward operator."""
    options = Options(mask, bias=torch.rand(*batch, 1, 7))
    tensors, constants = flatten(prepare(*tokens(*batch, dim=dim), score, options))
    tensors = [x.detach().requires_grad_(requires_grad and x.is_floating_point()) for x in tensors]
    return tensors, constants.text, constants.numbers, constants.sizes


@pytest.mark.parametrize("dim", [2, 17])
def test_forward_operator_passes_the_checks_of_torch(dim):
    mask = Mask.causal(align="top_left") & Mask.lengths(torch.tensor([3, 7]))
    given = arguments("gaussian", 2, dim=dim, mask=mask, requires_grad=True)
    assert set(torch.library.opcheck(OPERATOR.forward, given).values()) == {"SUCCESS"}


def test_backward_operator_passes_the_checks_of_torch():
    given = arguments("triangular", 2)
    saved = list(OPERATOR.forward(*given))
    d_results = [torch.randn_like(x) for x in saved[:2]]
    needs = [True] * len(given[0])
    assert set(torch.library.opcheck(OPERATOR.backward, (*given, saved, d_results, needs)).values()) == {"SUCCESS"}


def test_gradients_that_are_not_needed_are_empty():
    given = arguments("gaussian", 2)
    saved = list(OPERATOR.forward(*given))
    needs = [False, True, False, False, True]
    found = OPERATOR.backward(*given, saved, [torch.ones_like(x) for x in saved[:2]], needs)
    assert [grad.numel() > 0 for grad in found] == needs


def test_second_derivative_is_that_of_the_reference():
    query, key, value = tokens()

    def second(backend):
        leaf = query.detach().clone().requires_grad_()
        output = regard.attend(leaf, key, value, "gaussian", backend=backend)
        (first,) = torch.autograd.grad(output.sin().sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.sin().sum(), leaf)[0]

    torch.testing.assert_close(second("triton"), second("reference"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 1, 0)], ids=str)
def test_vmap_equals_a_loop_over_the_mapped_axis(in_dims):
    leaves = [x if dim is None else torch.stack([x, 2 * x], dim) for x, dim in zip(tokens(2), in_dims, strict=True)]

    def gradient(query, key, value):
        def pooled(query):
            return regard.attend(query, key, value, "gaussian", backend="triton").square().sum()

        return torch.func.grad(pooled)(query)

    found = vmap(gradient, in_dims)(*leaves)
    for at in range(2):
        one = [x if dim is None else x.select(dim, at) for x, dim in zip(leaves, in_dims, strict=True)]
        bounds.assert_same(found[at], gradient(*one))


def test_compiled_caller_has_one_graph():
    query, key, value = tokens(2, requires_grad=True)

    def pooled(query, key, value):
        return regard.attend(query, key, value, "gaussian", backend="triton") * 2

    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")(query, key, value)
    eager = pooled(query, key, value)
    assert torch.equal(compiled, eager)
    found, wanted = (torch.autograd.grad(x.sum(), (query, key, value)) for x in (compiled, eager))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("mapped", ["bias", "lengths"])
def test_vmap_over_a_bias_or_a_mask_equals_a_loop(mapped):
    query, key, value = tokens()
    examples = torch.randn(3, 1, 7) if mapped == "bias" else torch.tensor([7, 2, 4])

    def pooled(example):
        settings = {"bias": example} if mapped == "bias" else {"mask": Mask.lengths(example)}
        return regard.attend(query, key, value, "gaussian", backend="triton", **settings)

    found = vmap(pooled)(examples)
    for at, example in enumerate(examples):
        bounds.assert_same(found[at], pooled(example))


def test_vmap_may_share_axes_in_more_than_two_groups():
    query, key, value = torch.randn(3, 2, 3, 5, 4), torch.randn(2, 1, 7, 4), torch.randn(2, 1, 7, 2)

    def pooled(query):
        return regard.attend(query, key, value, "gaussian", backend="triton")

    found = vmap(pooled)(query)
    for at in range(3):
        bounds.assert_same(found[at], pooled(query[at]))
