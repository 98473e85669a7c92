"""The operator of additive scores passes the checks of torch for operators, and its callers can be transformed."""

import pytest
import torch
from tests import bounds
from tests.backends.triton.additive.judge import drawn, plan_of, problem_of, score_of
from torch.func import vmap

import regard
from regard import Mask
from regard.backends.encoding import flatten
from regard.backends.triton.additive import OPERATOR

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# Matrix units truncate what they multiply to 11 bits. Lifted scores allow that for weights and values.
TF32_ERROR = 2.0**-10
TOLERANCES = pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])


def arguments(tolerance, *, requires_grad=False):
    """Return the arguments of the forward operator for a call with a bias, a mask and dropout."""
    mask = Mask.lengths(torch.tensor([2]))
    call = drawn(3, 4, batch=(1,), spread=0.4, tolerance=tolerance, mask=mask, bias=torch.randn(1, 3, 4))
    options = plan_of(call).options
    assert (options[0] > 0) == (tolerance is not None)
    tensors, constants = flatten(problem_of(call, dropout=0.25)._replace(seed=torch.tensor(7)), options)
    tensors = [x.detach().requires_grad_(requires_grad and x.is_floating_point()) for x in tensors]
    return tensors, constants.text, constants.numbers, constants.sizes


@TOLERANCES
def test_forward_operator_passes_the_checks_of_torch(tolerance):
    found = torch.library.opcheck(OPERATOR.forward, arguments(tolerance, requires_grad=True))
    assert set(found.values()) == {"SUCCESS"}


@TOLERANCES
def test_backward_operator_passes_the_checks_of_torch(tolerance):
    given = arguments(tolerance)
    saved = list(OPERATOR.forward(*given))
    d_results = [torch.randn_like(x) for x in saved[:2]]
    needs = [x.is_floating_point() for x in given[0]]
    found = torch.library.opcheck(OPERATOR.backward, (*given, saved, d_results, needs))
    assert set(found.values()) == {"SUCCESS"}


@TOLERANCES
def test_gradients_that_are_not_needed_are_empty(tolerance):
    given = arguments(tolerance)
    saved = list(OPERATOR.forward(*given))
    ones = [torch.ones_like(x) for x in saved[:2]]
    everything = [x.is_floating_point() for x in given[0]]
    needs = [at in (1, 3) for at in range(len(everything))]
    found = OPERATOR.backward(*given, saved, ones, needs)
    assert [gradient.numel() > 0 for gradient in found] == needs
    complete = OPERATOR.backward(*given, saved, ones, everything)
    for at in (1, 3):
        assert torch.equal(found[at], complete[at])


def test_large_seeds_differ():
    """Seeds have more than 32 bits."""
    tensors, *constants = arguments(None)
    at = next(at for at, x in enumerate(tensors) if x.ndim == 0)
    masks = []
    for seed in (7, 7 + 2**32, 2**62 - 1):
        tensors[at] = torch.tensor(seed)
        masks.append(OPERATOR.forward(tensors, *constants)[0])
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_second_derivative_is_that_of_the_reference():
    call = drawn(3, 4)
    query = call.query

    def second(backend):
        leaf = query.detach().clone().requires_grad_()
        output = regard.attend(leaf, call.key, call.value, score_of(call), backend=backend)
        (first,) = torch.autograd.grad(output.sin().sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.sin().sum(), leaf)[0]

    torch.testing.assert_close(second("triton"), second("reference"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("in_dims", [(0, None, None), (None, 1, 0)], ids=str)
def test_vmap_equals_a_loop_over_the_mapped_axis(in_dims):
    call = drawn(3, 4, batch=(2,))
    score, bias = score_of(call), torch.randn(2, 3, 4)
    tokens = [
        x if dim is None else torch.stack([x, 2 * x], dim)
        for x, dim in zip((call.query, call.key, call.value), in_dims, strict=True)
    ]

    def gradient(query, key, value):
        def pooled(query):
            record = regard.inspect(query, key, value, score, bias=bias, backend="triton")
            return record.output.square().sum() + record.log_mass.sum()

        return torch.func.grad(pooled)(query)

    found = vmap(gradient, in_dims)(*tokens)
    for at in range(2):
        one = [x if dim is None else x.select(dim, at) for x, dim in zip(tokens, in_dims, strict=True)]
        bounds.assert_same(found[at], gradient(*one))


def with_gradient(call):
    """Return a call whose plan is for gradients, which it always is inside of transforms."""
    call.weight.requires_grad_()
    return call


@TOLERANCES
def test_vmap_over_the_forward_pass_equals_a_loop(tolerance):
    call = with_gradient(drawn(3, 4, spread=0.4, tolerance=tolerance))
    score = score_of(call)

    def pooled(query):
        return regard.attend(query, call.key, call.value, score, backend="triton", tolerance=tolerance)

    queries = torch.stack([call.query, -call.query])
    bounds.assert_same(vmap(pooled)(queries), torch.stack([pooled(query) for query in queries]))


@TOLERANCES
def test_compiled_caller_has_one_graph(tolerance):
    call = drawn(3, 4, spread=0.4, tolerance=tolerance)
    score, leaves = score_of(call), [x.requires_grad_() for x in (call.query, call.key, call.value)]

    def pooled(query, key, value):
        return regard.attend(query, key, value, score, backend="triton", tolerance=tolerance) * 2

    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")(*leaves)
    eager = pooled(*leaves)
    assert torch.equal(compiled, eager)
    found, wanted = (torch.autograd.grad(x.sum(), leaves) for x in (compiled, eager))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


def test_caller_is_compiled_again_when_the_range_changes():
    call = drawn(3, 4, spread=0.4)
    score = score_of(call)

    def pooled(query):
        return regard.attend(query, call.key, call.value, score, backend="triton", tolerance=2e-2)

    compiled, found = torch.compile(pooled, fullgraph=True, backend="aot_eager"), []
    for reach in ((2.0, 2.0), (1.0, 5.0)):
        score.reach.update(*reach)
        found.append(compiled(call.query))
        assert torch.equal(found[-1], pooled(call.query))
    assert not torch.equal(*found)


def test_call_without_gradients_has_the_same_results():
    call = drawn(3, 4)
    plain = regard.attend(call.query, call.key, call.value, score_of(call), backend="triton")
    tracked = regard.attend(call.query.requires_grad_(), call.key, call.value, score_of(call), backend="triton")
    assert tracked.requires_grad
    assert torch.equal(plain, tracked)


@TOLERANCES
@pytest.mark.parametrize("mapped", ["bias", "lengths"])
def test_vmap_over_a_bias_or_a_mask_equals_a_loop(mapped, tolerance):
    call = with_gradient(drawn(3, 4, spread=0.4, tolerance=tolerance))
    score = score_of(call)
    examples = torch.randn(3, 3, 4) if mapped == "bias" else torch.tensor([4, 2, 1])

    def pooled(example):
        settings = {"bias": example} if mapped == "bias" else {"mask": Mask.lengths(example)}
        return regard.attend(call.query, call.key, call.value, score, backend="triton", tolerance=tolerance, **settings)

    found = vmap(pooled)(examples)
    for at, example in enumerate(examples):
        bounds.assert_same(found[at], pooled(example))


@TOLERANCES
def test_vmap_over_dropout_alone_has_a_batch_axis(tolerance):
    call = with_gradient(drawn(3, 4, batch=(2,), spread=0.4, tolerance=tolerance))
    score, value = score_of(call), call.value.requires_grad_()

    def dropped(_):
        return regard.attend(call.query, call.key, value, score, dropout=0.5, backend="triton", tolerance=tolerance)

    found = vmap(dropped, randomness="different")(torch.zeros(5))
    assert found.shape == (5, 2, 3, value.shape[-1])
    assert not torch.equal(found[0], found[1])
    d_found = 2 * found.detach()
    (gradient,) = torch.autograd.grad(found, value, d_found, retain_graph=True)
    # The output is linear in the values.
    total, expected = (gradient * value).sum(), (d_found * found).sum()
    if tolerance is not None and value.is_cuda:
        # Weight and value are truncated in the forward pass, weight and gradient in the backward pass.
        (size,) = torch.autograd.grad(found, value, d_found.abs())
        bounds.assert_close(total, expected, 4 * TF32_ERROR * (size * value.abs()).sum().item())
    else:
        torch.testing.assert_close(total, expected)


@TOLERANCES
def test_vmap_may_share_axes_in_more_than_two_groups(tolerance):
    call = with_gradient(drawn(3, 4, batch=(2, 3), key_batch=(2, 1), spread=0.4, tolerance=tolerance))
    score, queries = score_of(call), torch.randn(2, *call.query.shape)

    def pooled(query):
        return regard.attend(query, call.key, call.value, score, backend="triton", tolerance=tolerance)

    found = vmap(pooled)(queries)
    for at in range(2):
        bounds.assert_same(found[at], pooled(queries[at]))
