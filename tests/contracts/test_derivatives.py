"""Derivatives of every order and direction: each backend against the reference, whose autograd has all of them."""

import pytest
import torch
from tests.refuses import refuses
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import regard
from regard import Mask
from regard.scores import Additive, Bilinear
from regard.scores.names import NAMED_SCORES
from regard.testing import dispatch_log

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # torch.func.jvp itself calls it
    pytest.mark.filterwarnings("ignore:Input #.*requires gradient and is not a double precision"),
]
QUERIES, KEYS, DIM, VALUE_DIM = 4, 5, 3, 2
MASKS = {
    "none": None,
    "lengths": Mask.lengths(torch.tensor([3, 0])),  # the second example has no key at all
    "causal": Mask.causal(align="lower_right"),
}
SCORES = {
    **{name: lambda name=name: name for name in NAMED_SCORES},
    "additive": lambda: Additive(DIM, DIM, 4).double(),
    "bilinear": lambda: Bilinear(DIM, DIM).double(),
}
# A boxcar is flat, so all its derivatives by tokens are 0.
SMOOTH = [name for name in SCORES if name != "boxcar"]


def tokens(scale=0.3):
    """Query, key and value of a batch of two; keys and queries differ, so no pair is at a kink."""
    shapes = (2, QUERIES, DIM), (2, KEYS, DIM), (2, KEYS, VALUE_DIM)
    return [scale * torch.randn(shape, dtype=torch.float64) for shape in shapes]


def attention(score, mask, backend="auto"):
    return lambda *x: regard.attend(*x, score, mask, backend=backend)


def scalar(function):
    return lambda *x: function(*x).sin().sum()


def assert_all_same(found, exact):
    found, exact = torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(exact)
    for left, right in zip(found, exact, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-7, atol=1e-9)


def third_by_autograd(function, inputs):
    """The gradients of a sum over gradients of a sum over gradients."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    result = scalar(function)(*leaves)
    for _ in range(2):
        grads = torch.autograd.grad(result, leaves, create_graph=True, materialize_grads=True)
        result = sum(x.sin().sum() for x in grads)
    return torch.autograd.grad(result, leaves, materialize_grads=True)


def jvp_of_jvp(function, inputs):
    query, key, value = inputs
    inner = lambda q: jvp(lambda x: function(x, key, value), (q,), (q.sin(),))[1]  # noqa: E731
    return jvp(inner, (query,), (query.cos(),))


WAYS = {
    "jvp": lambda f, x: jvp(f, tuple(x), tuple(y.sin() for y in x)),
    "jacfwd": lambda f, x: jacfwd(f, argnums=(0, 1, 2))(*x),
    "hessian": lambda f, x: hessian(scalar(f), argnums=(0, 1, 2))(*x),
    "jacrev twice": lambda f, x: jacrev(jacrev(scalar(f), argnums=(0, 1)), argnums=(0, 1))(*x),
    "grad of grad": lambda f, x: grad(lambda *y: scalar(grad(scalar(f)))(*y))(*x),
    "third by torch.func": lambda f, x: grad(lambda *y: scalar(grad(lambda *z: scalar(grad(scalar(f)))(*z)))(*y))(*x),
    "third by autograd": third_by_autograd,
    "jvp of jvp": jvp_of_jvp,
    "vmap of grad of grad": lambda f, x: vmap(grad(lambda *y: scalar(grad(scalar(f)))(*y)))(*(y[:, None] for y in x)),
    "vmap of jvp": lambda f, x: vmap(lambda *y: jvp(f, y, tuple(z.sin() for z in y)))(*(y[:, None] for y in x)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_blocked_agrees_with_the_reference_in_every_direction(score, mask, way):
    made, inputs = SCORES[score](), tokens()
    given = None if way.startswith("vmap") and mask == "lengths" else MASKS[mask]
    found = WAYS[way](attention(made, given, "blocked"), inputs)
    assert_all_same(found, WAYS[way](attention(made, given, "reference"), inputs))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SMOOTH)
def test_second_derivatives_agree_with_finite_differences(score, mask):
    inputs = [x.requires_grad_() for x in tokens()]
    function = attention(SCORES[score](), MASKS[mask], "blocked")
    options = {"fast_mode": not inputs[0].is_cpu}  # on a GPU, entry by entry takes 10 seconds
    assert gradgradcheck(function, inputs, **options)
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_forward_grad=True, **options)
    assert gradgradcheck(function, inputs, check_fwd_over_rev=True, **options)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_auto_has_second_derivatives_at_600_tokens(score, mask, set_limits):
    set_limits(small_elements=2**16)  # the limit of a CPU; that of a GPU is larger than these calls
    made = SCORES[score]()
    query, key, value = (0.3 * torch.randn(2, 600, n, dtype=torch.float64) for n in (DIM, DIM, VALUE_DIM))
    given = Mask.lengths(torch.tensor([600, 17])) if mask == "lengths" else MASKS[mask]

    def second(backend):
        leaves = [x.clone().requires_grad_() for x in (query, key, value)]
        first = torch.autograd.grad(scalar(attention(made, given, backend))(*leaves), leaves, create_graph=True)
        return torch.autograd.grad(sum(x.sin().sum() for x in first), leaves, materialize_grads=True)

    with dispatch_log() as ran:
        found = second("auto")
    assert ran != ["reference"]
    assert_all_same(found, second("reference"))


@pytest.mark.parametrize("score", ["scaled_dot", "gaussian"])
def test_forward_mode_of_auto_is_that_of_the_reference(score):
    query, key, value = (torch.randn(2, 3, 600, n, dtype=torch.float64) for n in (8, 8, 5))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(query, query.sin())
        found, exact = (
            torch.autograd.forward_ad.unpack_dual(regard.attend(dual, key, value, score, backend=backend)).tangent
            for backend in ("auto", "reference")
        )
    assert_all_same(found, exact)


@pytest.mark.parametrize("score", ["gaussian", "additive"])
def test_gradients_of_parameters_and_bias_have_derivatives(score):
    made = (
        Additive(DIM, DIM, 4).double() if score == "additive" else regard.scores.Gaussian(0.8, learnable=True).double()
    )
    inputs = tokens()
    bias = torch.randn(1, QUERIES, KEYS, dtype=torch.float64, requires_grad=True)
    leaves = [*(x.requires_grad_() for x in inputs), bias, *made.parameters()]

    def second(backend):
        output = regard.attend(*inputs, made, bias=bias, backend=backend)
        first = torch.autograd.grad(output.sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(x.sin().sum() for x in first), leaves)

    assert_all_same(second("blocked"), second("reference"))


def test_equal_tokens_are_at_a_kink_whose_slope_counts_as_0():
    query = torch.randn(5, DIM, dtype=torch.float64)
    for score in ("laplacian", "triangular"):
        leaf = query.clone().requires_grad_()
        output = regard.attend(leaf, leaf, leaf, score, backend="blocked")
        (first,) = torch.autograd.grad(output.sin().sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.sin().sum(), leaf)
        assert second.isfinite().all()


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # of torch 2.11
def test_second_derivatives_hold_one_block_at_a_time(set_limits):
    """The textbook form holds queries x keys x dim numbers, several times."""
    set_limits(row_block_elements=2**14, row_block_queries=1, tile_pairs=2**14, kept_scores=0)
    query = torch.randn(1024, 4, requires_grad=True)

    def first_derivative():
        output = regard.attend(query, query, query, "gaussian", backend="blocked")
        return torch.autograd.grad(output.sin().sum(), query, create_graph=True)[0]

    def peak():
        torch.autograd.grad(
            first_derivative().sin().sum(), query
        )  # on a GPU, the first matrix product allocates a workspace
        first = first_derivative()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            torch.autograd.grad(first.sin().sum(), query)
        held = highest = 0
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                highest = max(highest, held)
        return highest

    assert 0 < peak() < 1024 * 1024 * 4


def test_dropout_has_first_derivatives_only():
    query, key, value = (x.requires_grad_() for x in tokens())
    output = regard.attend(query, key, value, "gaussian", dropout=0.5, backend="blocked")
    (first,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    with refuses("backend", "dropout", "second order"):
        first.sum().backward()
