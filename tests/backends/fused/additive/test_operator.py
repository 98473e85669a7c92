"""The operators behind additive attention keep torch's contract for operators, and callers can be transformed."""

import pytest
import torch
from tests import bounds
from tests.backends.fused.additive.judge import drawn, plan_of, score_of
from tests.refuses import refuses
from torch.func import vmap

import regard
from regard import Mask
from regard.backends.fused.additive.call import Statics
from regard.backends.fused.additive.operator import OPERATOR
from regard.masks.bound import flatten

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TOLERANCES = pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])


def arguments(tolerance, *, requires_grad=False):
    """What the operator takes for a call with a bias, a mask and dropout: tensors and statics."""
    call = drawn(3, 4, batch=(1,), spread=0.4, tolerance=tolerance, bias=torch.randn(1, 3, 4))
    mask = Mask.lengths(torch.tensor([2]))
    bound = mask.place(batch=(1,), queries=3, keys=4, device=call.query.device)
    text, parts, numbers = flatten(bound)
    tensors = [call.query, call.key, call.weight.expand(1, 1, -1).clone(), call.value, call.bias]
    tensors = [x.requires_grad_(requires_grad) for x in tensors]
    statics = Statics(True, True, text, numbers, 0.25, *plan_of(call)[:3])
    assert (statics.rank > 0) == (tolerance is not None)
    return [*tensors, torch.tensor(7), *parts], *statics


@TOLERANCES
def test_the_forward_operator_passes_the_checks_of_torch(tolerance):
    found = torch.library.opcheck(OPERATOR.forward, arguments(tolerance, requires_grad=True))
    assert set(found.values()) == {"SUCCESS"}


@TOLERANCES
def test_the_backward_operator_passes_the_checks_of_torch(tolerance):
    tensors, *statics = arguments(tolerance)
    results = OPERATOR.forward(tensors, *statics)
    given = [torch.randn_like(x) for x in results]
    needs = [x.is_floating_point() for x in tensors]
    found = torch.library.opcheck(OPERATOR.backward, ([*given, *results], tensors, *statics, needs))
    assert set(found.values()) == {"SUCCESS"}


@TOLERANCES
def test_gradients_that_nobody_needs_come_back_empty(tolerance):
    tensors, *statics = arguments(tolerance)
    results = OPERATOR.forward(tensors, *statics)
    needs = [False, True, False, True, False, False, False]
    ones = [torch.ones_like(x) for x in results]
    found = OPERATOR.backward([*ones, *results], tensors, *statics, needs)
    assert [gradient.numel() > 0 for gradient in found] == needs
    whole = OPERATOR.backward([*ones, *results], tensors, *statics, [True] * 5 + [False] * 2)
    for at in (1, 3):
        assert torch.equal(found[at], whole[at])


def test_a_second_derivative_is_refused():
    call = drawn(3, 4)
    query = call.query.requires_grad_()
    output = regard.attend(query, call.key, call.value, score_of(call), backend="triton")
    (first,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    with refuses("backend", "derivative", "through", "second"):
        first.sum().backward()


@pytest.mark.parametrize("in_dims", [(0, None, None), (None, 1, 0)], ids=str)
def test_vmap_is_a_loop_over_the_mapped_axis(in_dims):
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


@TOLERANCES
def test_vmap_over_the_forward_pass_alone(tolerance):
    call = drawn(3, 4, spread=0.4, tolerance=tolerance)
    score = score_of(call)

    def pooled(query):
        return regard.attend(query, call.key, call.value, score, backend="triton", tolerance=tolerance)

    queries = torch.stack([call.query, -call.query])
    bounds.assert_same(vmap(pooled)(queries), torch.stack([pooled(query) for query in queries]))


@TOLERANCES
def test_a_compiled_caller_has_one_graph(tolerance):
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


def test_a_range_that_moved_is_compiled_anew():
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


def test_a_call_that_nobody_differentiates_gives_the_same_numbers():
    call = drawn(3, 4)
    plain = regard.attend(call.query, call.key, call.value, score_of(call), backend="triton")
    tracked = regard.attend(call.query.requires_grad_(), call.key, call.value, score_of(call), backend="triton")
    assert tracked.requires_grad
    assert torch.equal(plain, tracked)
