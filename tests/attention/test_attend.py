"""Attention pooling as one operator: a convex combination of values, whatever the score (eq. 1 to 3)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import bounds
from tests.contracts.agreement import DTYPES, Case, build, identity_bounds
from tests.contracts.cases import DOTS, MASKS, POSITIONED, SCORES
from tests.refuses import refuses

import regard
from regard import Mask, testing
from regard.scores.names import NAMED_SCORES, SIZED_SCORES

LISTED = [*NAMED_SCORES, *SIZED_SCORES]
# Every backend that takes dot products.
BACKENDS = ("torch", "reference", "blocked")
# Every backend with every score it takes; distances on triton, which takes fewer masks for them: tests/backends/triton.
RUNS = [(backend, score) for backend in BACKENDS for score in LISTED if backend != "torch" or score in DOTS]
RUNS.append(("triton", "additive"))
# Triton's interpreter computes with NumPy, which warns of the logarithm of 0.
INTERPRETED = pytest.mark.filterwarnings("ignore::RuntimeWarning")
LEARNING = [(backend, f"{name} learnable") for backend in ("reference", "blocked") for name in ("gaussian", "biweight")]


def drawn(*batch, queries=5, keys=7, dim=3, value_dim=2, dtype=torch.float64):
    shapes = (*batch, queries, dim), (*batch, keys, dim), (*batch, keys, value_dim)
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


# --- The convex combination (eq. 2) ----------------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", [*SCORES, *POSITIONED])
def test_weights_are_a_convex_combination(score, mask):
    call = build(Case(score, mask, torch.float64, 5, 7), torch.float64)
    arguments = (call.query, call.key, call.value, call.score, call.mask)
    exact = regard.inspect(*arguments, bias=call.bias, backend="reference")
    alive = (exact.log_mass > -torch.inf).double()
    for backend in ("reference", "blocked"):
        record = regard.inspect(*arguments, bias=call.bias, backend=backend)
        weights = record.weights()
        assert (weights >= 0).all()
        # Weights are the equations' scores over the backend's log_mass: they sum to 1 as far as the two agree.
        slack = bounds.roundings(weights, 64) + bounds.error(record.log_mass, exact.log_mass)
        bounds.assert_close(weights.sum(-1), alive, slack)
        bounds.assert_close(record.output, weights @ call.value, bounds.roundings(call.value, 128) + 5 * slack)


@pytest.mark.parametrize("backend", BACKENDS)
@given(seed=st.integers(0, 2**31), scale=st.floats(1e-3, 1e3), dtype=st.sampled_from(DTYPES))
def test_the_output_lies_in_the_hull_of_the_values(backend, seed, scale, dtype):
    torch.manual_seed(seed)
    query, key, value = (x.detach().to(dtype) for x in drawn(2))
    output = regard.attend(scale * query, key, value, backend=backend)
    slack = testing.ULPS * testing.ulp(value, dtype)
    assert (output <= value.amax(-2, keepdim=True) + slack).all()
    assert (output >= value.amin(-2, keepdim=True) - slack).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_values_are_returned_as_they_are(backend):
    query, key, _ = drawn(2)
    value = torch.full((2, 7, 3), 1.25, dtype=torch.float64)
    bounds.assert_same(regard.attend(query, key, value, backend=backend), torch.full((2, 5, 3), 1.25).double())


def test_the_order_of_keys_does_not_matter():
    query, key, value = drawn(2)
    order = torch.randperm(7)
    shuffled = regard.attend(query, key[:, order], value[:, order], "gaussian", backend="blocked")
    bounds.assert_same(shuffled, regard.attend(query, key, value, "gaussian", backend="blocked"))


def test_attend_is_the_output_of_inspect():
    for backend in ("reference", "blocked"):
        leaves = drawn(2)
        assert torch.equal(
            regard.attend(*leaves, "gaussian", backend=backend),
            regard.inspect(*leaves, "gaussian", backend=backend).output,
        )


def test_any_callable_is_a_score():
    """eq. 3 with any f: here the plain distance, of torch's own function."""
    query, key, value = drawn(2)
    found = regard.attend(query, key, value, lambda q, k: -torch.cdist(q, k), backend="blocked")
    bounds.assert_same(found, torch.softmax(-torch.cdist(query, key), -1) @ value)


@pytest.mark.parametrize("shape", [(5, 7), (1, 5, 7)])
def test_a_callable_may_return_what_the_batch_shares(shape):
    query, key, value = drawn(2)
    tile = torch.randn(shape, dtype=torch.float64)
    full = torch.softmax(tile.expand(2, 5, 7), -1) @ value
    for backend in ("reference", "blocked"):
        record = regard.inspect(query, key, value, lambda q, k: tile, backend=backend)
        bounds.assert_same(record.output, full)
        assert record.weights().shape == (2, 5, 7)


@pytest.mark.parametrize("shape", [(), (7,), (1, 7), (5, 1), (1, 1), (2, 1, 1), (2, 5, 1), (2, 7, 5)])
def test_a_callable_has_a_score_for_every_pair(shape):
    query, key, value = drawn(2)
    tile = torch.randn(shape, dtype=torch.float64)
    with refuses("score", "(2, 5, 7)"):
        regard.attend(query, key, value, lambda q, k: tile)


@pytest.mark.parametrize("what", ["score", "bias"])
def test_a_callable_answers_on_the_device_of_the_inputs(what):
    query, key, value = drawn(2)
    tile = torch.randn(5, 7, dtype=torch.float64, device="meta")
    with refuses(what, "float64 (5, 7) on meta", "needed the device of the inputs, cpu"):
        regard.attend(query, key, value, **{what: lambda one, other: tile})


# --- Axes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (2, 3, 2, 2)], ids=len)
def test_any_number_of_leading_axes(batch, backend):
    query, key, value = drawn(*batch)
    found = regard.attend(query, key, value, backend=backend)
    assert found.shape == (*batch, 5, 2)
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (query, key, value)]
    for at, row in enumerate(found.reshape(-1, 5, 2)):
        bounds.assert_same(row, regard.attend(*(x[at] for x in flat), backend=backend))


SHARED = {
    "keys and values": ((2, 3), (2, 1), (2, 1)),
    "queries": ((1, 3), (2, 3), (2, 3)),
    "values alone": ((2, 3), (2, 3), (1, 1)),
    "all but values": ((1, 1), (1, 1), (2, 3)),
    "crosswise": ((2, 1), (1, 3), (2, 1)),
}


@pytest.mark.parametrize("backend", ["reference", "blocked"])
@pytest.mark.parametrize("score", ["scaled_dot", "gaussian learnable", "additive", "biweight"])
@pytest.mark.parametrize("sharing", SHARED)
def test_a_shared_axis_equals_its_copies_gradients_included(sharing, score, backend):
    case = SCORES[score]
    module = case.build().double()
    sizes = (5, case.query_dim), (7, case.key_dim), (7, 2)
    shared = [
        torch.randn(*batch, *size, dtype=torch.float64).requires_grad_()
        for batch, size in zip(SHARED[sharing], sizes, strict=True)
    ]
    bias = torch.randn(2, 1, 1, 7, dtype=torch.float64).requires_grad_()
    leaves = (*shared, bias, *module.parameters())

    def results(query, key, value):
        record = regard.inspect(query, key, value, module, bias=bias, backend=backend)
        torch.manual_seed(1)
        outputs = record.output, record.log_mass
        return *outputs, *torch.autograd.grad(outputs, leaves, [torch.randn_like(x) for x in outputs])

    copied = [x.expand(2, 3, *x.shape[-2:]).clone() for x in shared]
    for found, expected in zip(results(*shared), results(*copied), strict=True):
        bounds.assert_close(found, expected, bounds.roundings(expected, 256))


def test_the_output_has_the_dtype_of_the_values_and_log_mass_that_of_accumulation():
    for dtype in DTYPES:
        for backend in ("reference", "blocked"):
            record = regard.inspect(*(x.detach().to(dtype) for x in drawn(2)), "gaussian", backend=backend)
            assert record.output.dtype == dtype
            assert record.log_mass.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_a_callable_bias_does_not_change_the_dtype_of_log_mass():
    leaves = [x.detach().float() for x in drawn(2)]
    for bias in (lambda i, j: (i[:, None] - j).double(), lambda i, j: (i[:, None] - j).half()):
        record = regard.inspect(*leaves, bias=bias)
        assert record.output.dtype == record.log_mass.dtype == torch.float32


# --- Rows without keys -----------------------------------------------------------------------------------------


@INTERPRETED
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("backend", "score"), RUNS)
def test_a_row_without_keys_is_0_with_gradient_0(score, backend, dtype):
    """Row 0 of the first batch element and everything of the second see nothing."""
    if backend == "triton" and dtype == torch.float64:
        pytest.skip("the kernels of triton compute in float32")
    call = build(Case(score, "none", dtype, 5, 7, log_mass=backend != "torch"), dtype)
    seen = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    seen[0, :, 0] = False
    seen[1] = False
    leaves = list(call.leaves.values())
    arguments = (call.query, call.key, call.value, call.score, Mask.keep(seen))
    output = regard.attend(*arguments, backend=backend)
    assert (output[0, :, 0] == 0).all()
    assert (output[1] == 0).all()
    assert output.isfinite().all()
    gradients = torch.autograd.grad(output.sum(), leaves, allow_unused=True, materialize_grads=True)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all((gradient[1] == 0).all() for gradient in gradients[:3])
    assert (gradients[0][0, :, 0] == 0).all()
    if backend == "torch":
        return
    record = regard.inspect(*arguments, backend=backend)
    assert (record.log_mass[1] == -torch.inf).all()
    assert (record.log_mass[0, :, 0] == -torch.inf).all()
    weights = record.weights()
    assert (weights[1] == 0).all()
    everything = (record.output, weights, record.entropy(), record.key_mass())
    outputs = [x for x in everything if x.requires_grad]
    gradients = torch.autograd.grad(
        outputs, leaves, [torch.ones_like(x) for x in outputs], allow_unused=True, materialize_grads=True
    )
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all((gradient[1] == 0).all() for gradient in gradients[:3])


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_a_gradient_of_log_mass_is_0_in_a_row_without_keys(backend):
    query, key, value = drawn(2)
    record = regard.inspect(query, key, value, "gaussian", Mask.lengths(torch.tensor([0, 3])), backend=backend)
    for gradient in torch.autograd.grad(record.log_mass.sum(), (query, key)):
        assert gradient.isfinite().all()
        assert (gradient[0] == 0).all()


# --- Padding and batch mates -----------------------------------------------------------------------------------


@INTERPRETED
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("backend", "score"), RUNS + LEARNING)
def test_what_is_masked_may_hold_any_garbage(score, backend, dtype):
    """The largest numbers there are in padding change no result and no gradient; their own gradients are 0."""
    if backend == "triton" and dtype == torch.float64:
        pytest.skip("the kernels of triton compute in float32")
    call = build(Case(score, "none", dtype, 5, 7, log_mass=backend != "torch"), dtype)
    arguments = {"mask": Mask.lengths(torch.tensor([5, 3])), "backend": backend}

    def results(garbage):
        key, value = call.key.detach().clone(), call.value.detach().clone()
        for tokens in (key, value):
            tokens[0, :, 5:] = garbage
            tokens[1, :, 3:] = -garbage
        leaves = (call.query, key.requires_grad_(), value.requires_grad_(), *call.score.parameters())
        output = regard.attend(*leaves[:3], call.score, **arguments)
        gradients = torch.autograd.grad(output, leaves, call.grad_output, allow_unused=True, materialize_grads=True)
        return output.detach(), *gradients

    clean, largest = results(0.0), torch.finfo(dtype).max
    for garbage in (largest, largest**0.5, largest**0.5 / 20):
        dirty = results(garbage)
        for found, expected in zip(dirty, clean, strict=True):
            bounds.assert_same(found, expected)
        for gradient in dirty[2:4]:
            assert (gradient[0, :, 5:] == 0).all()
            assert (gradient[1, :, 3:] == 0).all()


@INTERPRETED
@pytest.mark.parametrize("mask", ["keep", "per query", "documents"])
@pytest.mark.parametrize(("backend", "score"), RUNS + LEARNING)
def test_garbage_behind_a_mask_of_pairs_is_not_seen_either(score, backend, mask):
    case = Case(score, "none", torch.float32, 5, 7, log_mass=backend != "torch")
    call = build(case, torch.float32)
    words = {
        "keep": Mask.keep((torch.arange(7) < 5).expand(5, 7)),
        "per query": Mask.lengths_per_query(torch.full((2, 5), 5)),
        "documents": Mask.documents(torch.zeros(2, 5).long(), (torch.arange(7) >= 5).long().expand(2, 7)),
    }[mask]

    def results(garbage):
        key, value = call.key.detach().clone(), call.value.detach().clone()
        key[..., 5:, :], value[..., 5:, :] = garbage, -garbage
        leaves = (call.query, key.requires_grad_(), value.requires_grad_(), *call.score.parameters())
        output = regard.attend(*leaves[:3], call.score, words, backend=backend)
        gradients = torch.autograd.grad(output, leaves, call.grad_output, allow_unused=True, materialize_grads=True)
        return output.detach(), *gradients

    # Garbage may send a tile from identity A to tanh: either keeps to the identity's bound.
    extra = identity_bounds(case, backend)
    names = ("output", *call.leaves)
    for name, found, expected in zip(names, results(1e30), results(0.0), strict=True):
        allowed = bounds.band(expected, 0.0, torch.float32) + extra.get(name, 0.0)
        bounds.assert_close(found, expected, allowed, name)


@INTERPRETED
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("backend", "score"), RUNS)
def test_batch_mates_change_nothing_beyond_the_band(score, backend, dtype):
    """Each element alone, and beside mates a thousand times as large."""
    if backend == "triton" and dtype == torch.float64:
        pytest.skip("the kernels of triton compute in float32")
    case = Case(score, "none", dtype, 5, 7, log_mass=backend != "torch")
    call = build(case, dtype)
    query, key, value = (x.detach().clone() for x in (call.query, call.key, call.value))
    alone = regard.attend(query[:1], key[:1], value[:1], call.score, backend=backend)
    for tokens in (query, key, value):
        tokens[1] *= 1000
    together = regard.attend(query, key, value, call.score, backend=backend)[:1]
    exact_call = build(case, torch.float64)
    tokens = (exact_call.query[:1], exact_call.key[:1], exact_call.value[:1])
    exact = regard.attend(*tokens, exact_call.score, backend="reference")
    reference = regard.attend(query[:1], key[:1], value[:1], call.score, backend="reference")
    # A mate may send a tile from identity A to tanh: either keeps to the identity's bound.
    extra = identity_bounds(case, backend).get("output", 0.0)
    allowed = bounds.band(exact, bounds.error(reference, exact), dtype) + extra
    bounds.assert_close(together, exact, allowed)
    bounds.assert_close(alone, exact, allowed)


# --- Dropout ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_keeps_the_mean(backend):
    query, key, value = (x.detach() for x in drawn(queries=1, keys=50))
    query = query.expand(20_000, 3)
    plain = regard.attend(query[:1], key, value)
    dropped = regard.attend(query, key, value, dropout=0.3, backend=backend)
    standard_error = dropped.std(0) / 20_000**0.5
    assert ((dropped.mean(0) - plain[0]).abs() < 5 * standard_error).all()
    assert (dropped.std(0) > 0).all()


@pytest.mark.parametrize("score", ["scaled_dot", "gaussian", lambda q, k: q @ k.mT])
@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_the_backward_pass_sees_the_mask_of_the_forward_pass(backend, score):
    query, key, value = drawn(2)

    def pooled(query, key, value):
        torch.manual_seed(5)
        return regard.attend(query, key, value, score, dropout=0.5, backend=backend)

    assert torch.autograd.gradcheck(pooled, (query, key, value), fast_mode=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_output_stays_linear_in_the_values_under_one_dropout_mask(backend):
    """The gradient of the values is the transposed map of the forward pass, weights dropped alike."""
    query, key, value = drawn(2)
    torch.manual_seed(5)
    output = regard.attend(query, key, value, dropout=0.5, backend=backend)
    cotangent = torch.randn_like(output)
    (gradient,) = torch.autograd.grad(output, value, cotangent)
    bounds.assert_close((gradient * value).sum(), (output * cotangent).sum(), bounds.roundings(output, 512))


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_of_everything_gives_0(backend):
    leaves = drawn(2)
    output = regard.attend(*leaves, dropout=1.0, backend=backend)
    assert (output == 0).all()
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(output.sum(), leaves))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_generator_decides_what_is_dropped(backend):
    leaves = drawn(2)

    def pooled(seed):
        torch.manual_seed(seed)
        return regard.attend(*leaves, dropout=0.5, backend=backend)

    assert torch.equal(pooled(1), pooled(1))
    assert not torch.equal(pooled(1), pooled(2))


def test_weights_and_log_mass_are_those_before_dropout():
    leaves = drawn(2)
    for backend in ("reference", "blocked"):
        plain = regard.inspect(*leaves, "gaussian", backend=backend)
        dropped = regard.inspect(*leaves, "gaussian", dropout=0.5, backend=backend)
        assert torch.equal(dropped.log_mass, plain.log_mass)
        assert torch.equal(dropped.weights(), plain.weights())
        assert torch.equal(dropped.entropy(), plain.entropy())


def test_a_callable_sees_its_keys_as_they_came():
    """A cosine written by hand divides by the norm of a key, also of a padded one."""
    query, key, value = drawn(2)
    mask = Mask.lengths(torch.tensor([5, 3]))

    def cosine(q, k):
        return (q / q.norm(dim=-1, keepdim=True)) @ (k / k.norm(dim=-1, keepdim=True)).mT

    gradients = torch.autograd.grad(regard.attend(query, key, value, cosine, mask).sum(), (query, key))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_sink_without_mass_leaves_an_empty_row_at_zero():
    score = regard.scores.ScaledDot(sink=3)
    score.sink.data.fill_(-torch.inf)
    query, key, value = drawn(3)
    output = regard.attend(query, key, value, score.double(), Mask.lengths(torch.tensor([0, 1, 7])))
    assert (output[0] == 0).all()
    assert output.isfinite().all()
