"""Custom operators: plain calls run the functions directly, traced calls run the operator, and torch accepts both."""

import pytest
import torch
from tests import bounds
from tests.contracts.agreement import Case, build
from torch._subclasses.fake_tensor import FakeTensorMode

from regard import Mask
from regard.attention.prepare import Options, prepare
from regard.backends import blocked, reference
from regard.backends.base import Problem
from regard.backends.custom_op import Operator
from regard.backends.encoding import flatten, unflatten
from regard.scores import Additive, Gaussian, ScaledDot

CALLS = []


FUNCTIONS = blocked.OPERATOR.functions


def forward(problem, options):
    CALLS.append(("forward", options))
    return FUNCTIONS.forward(problem, options)


def backward(problem, options, saved, d_output, d_log_mass, needs):
    CALLS.append(("backward", needs))
    return FUNCTIONS.backward(problem, options, saved, d_output, d_log_mass, needs)


OPERATOR = Operator(
    "test_attention",
    FUNCTIONS._replace(forward=forward, backward=backward),
    backend="test",
)


def problem_of(*leaves, score=None, mask=None) -> Problem:
    return prepare(*leaves, score or ScaledDot(), Options(mask))


def tokens(*batch, queries=4, keys=5, dtype=torch.float64, **settings):
    shapes = (*batch, queries, 3), (*batch, keys, 3), (*batch, keys, 2)
    return [torch.randn(shape, dtype=dtype, **settings) for shape in shapes]


def total(query, key, value):
    output, log_mass, _ = OPERATOR.run(problem_of(query, key, value))
    return output.sin().sum() + log_mass.sum()


def exact_total(query, key, value):
    output, log_mass, _ = reference.attention(problem_of(query, key, value))
    return output.sin().sum() + log_mass.sum()


@pytest.fixture
def operators():
    """A mode that lists the operators of torch that are called inside of it, and the list."""
    called = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.append(str(function))
            return function(*args, **(kwargs or {}))

    return Watch, called


def test_plain_call_runs_the_functions_directly():
    CALLS.clear()
    leaves = tokens(2, requires_grad=True)
    found = torch.autograd.grad(total(*leaves), leaves)
    assert [name for name, _ in CALLS] == ["forward", "backward"]
    for left, right in zip(found, torch.autograd.grad(exact_total(*leaves), leaves), strict=True):
        bounds.assert_same(left, right)


def test_backward_function_is_told_which_gradients_are_needed():
    CALLS.clear()
    query, key, value = tokens()
    key.requires_grad_()
    total(query, key, value).backward()
    (_, needs) = CALLS[-1]
    assert (list(needs.pair), needs.value, needs.bias) == ([False, True], False, False)


def test_intercepted_call_runs_the_operators(operators):
    watch, called = operators
    leaves = tokens(2, requires_grad=True)
    with watch():
        total(*leaves).backward()
    assert "regard.test_attention.default" in called
    assert "regard.test_attention_backward.default" in called


def test_shapes_are_known_without_computing():
    CALLS.clear()
    with FakeTensorMode():
        output, log_mass, _ = OPERATOR.run(problem_of(*tokens(2)))
    assert (output.shape, log_mass.shape, CALLS) == ((2, 4, 2), (2, 4), [])


def test_transforms_give_the_results_of_a_loop():
    stacked = tokens(3, 2)
    found = torch.func.vmap(torch.func.grad(total))(*stacked)
    wanted = [torch.func.grad(exact_total)(*one) for one in zip(*stacked, strict=True)]
    bounds.assert_same(found, torch.stack(wanted))
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    bounds.assert_same(compiled(*stacked), exact_total(*stacked))


def test_second_derivative_is_that_of_the_equations():
    leaves = tokens(requires_grad=True)

    def second(function):
        first = torch.autograd.grad(function(*leaves), leaves, create_graph=True)
        return torch.autograd.grad(sum(x.sin().sum() for x in first), leaves)

    for left, right in zip(second(total), second(exact_total), strict=True):
        bounds.assert_close(left, right, bounds.roundings(right, 256))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_forward_mode_derivative_is_that_of_the_equations():
    query, key, value = tokens()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(query, torch.ones_like(query))
        found, exact = (
            torch.autograd.forward_ad.unpack_dual(f(dual, key, value)).tangent for f in (total, exact_total)
        )
    bounds.assert_close(found, exact, bounds.roundings(exact, 256))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_tracer_records_one_operator():
    traced = torch.jit.trace(total, tokens())
    assert "regard::test_attention" in str(traced.graph)


# --- Every operator of the library -----------------------------------------------------------------------------


def arguments(score, mask="keep", dropout=0.0, requires_grad=True):
    """What `run` passes to the operator of `blocked`."""
    call = build(Case(score, mask, queries=5, keys=7), torch.float32)
    options = Options(mask=call.mask, bias=call.bias, dropout=dropout)
    problem = prepare(call.query, call.key, call.value, call.score, options)
    if dropout:
        problem = problem._replace(seed=torch.tensor(3))
    tensors, constants = flatten(problem, (False, False))
    tensors = [x.detach().requires_grad_(requires_grad and x.is_floating_point()) for x in tensors]
    return tensors, constants.text, constants.numbers, constants.sizes


def test_constants_cannot_be_unpacked():
    """torch.compile of torch 2.11 fails where an object is unpacked by a method `__iter__` written in Python."""
    _, constants = flatten(problem_of(*tokens(2)))
    with pytest.raises(TypeError, match="not iterable"):
        iter(constants)


@pytest.mark.parametrize(
    ("score", "mask"), [("scaled_dot", "none"), ("gaussian learnable", "combination"), ("additive", "keep")]
)
def test_forward_operator_passes_the_checks_of_torch(score, mask):
    found = torch.library.opcheck(blocked.OPERATOR.forward, arguments(score, mask))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("score", ["scaled_dot", "gaussian learnable", "additive"])
def test_backward_operator_passes_the_checks_of_torch(score):
    tensors, *constants = arguments(score, requires_grad=False)
    saved = blocked.OPERATOR.forward(tensors, *constants)
    d_results = [torch.randn_like(x) for x in saved[:2]]
    needs = [x.is_floating_point() for x in tensors]
    found = torch.library.opcheck(blocked.OPERATOR.backward, (tensors, *constants, list(saved), d_results, needs))
    assert set(found.values()) == {"SUCCESS"}


def test_gradients_that_are_not_needed_are_empty():
    tensors, *constants = arguments("scaled_dot", requires_grad=False)
    saved = list(blocked.OPERATOR.forward(tensors, *constants))
    needs = [False, True, *(False for _ in tensors[2:])]
    found = blocked.OPERATOR.backward(tensors, *constants, saved, [torch.ones_like(x) for x in saved[:2]], needs)
    assert [gradient.numel() > 0 for gradient in found] == needs


def test_seed_decides_which_weights_are_dropped():
    tensors, *constants = arguments("scaled_dot", "none", dropout=0.5, requires_grad=False)
    first, again = (blocked.OPERATOR.forward(tensors, *constants)[0] for _ in range(2))
    other = blocked.OPERATOR.forward([*tensors[:-1], torch.tensor(4)], *constants)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "score",
    [ScaledDot(softcap=5.0), Gaussian(torch.tensor([[0.5]])), Additive.of_projected(3, heads=2)],
    ids=lambda score: type(score).__name__,
)
@pytest.mark.parametrize("mask", [None, Mask.causal(align="top_left") & Mask.lengths(torch.tensor([3, 5]))], ids=str)
def test_flatten_and_unflatten_are_inverse(score, mask):
    query, key, value = tokens(2, 2, dtype=torch.float32)
    bias = torch.randn(2, 1, 1, 5)
    problem = prepare(query, key, value, score, Options(mask, bias, dropout=0.25, tolerance=1e-3))
    problem = problem._replace(seed=torch.tensor(2**61))
    found, options = unflatten(*flatten(problem, (True, 3, 0.5)))
    assert options == (True, 3, 0.5)
    assert (found.dropout, found.tolerance, found.seed) == (0.25, 1e-3, problem.seed)
    assert type(found.pair) is type(problem.pair)
    for left, right in zip(found.operands(), problem.operands(), strict=True):
        assert left is right
    assert torch.equal(found.pair.scores(), problem.pair.scores())
    if mask is not None:
        everything = slice(0, 4), slice(0, 5), query.device
        assert torch.equal(found.mask.tile(*everything), problem.mask.tile(*everything))
