"""Callers can be vmapped, compiled, exported, autocast and run without gradients."""

import sys

import pytest
import torch
from tests import bounds
from tests.refuses import refuses
from torch.func import functional_call, grad, vmap

import regard
from regard import Mask
from regard.backends.blocked.additive import can_compile_loops
from regard.scores import Additive, Gaussian, ScaledDot
from regard.scores.names import NAMED_SCORES

NAMES = ("torch", "reference", "blocked", "auto")
# Triton's interpreter computes with NumPy, which warns of the logarithm of 0.
INTERPRETED = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def drawn(*batch, queries=5, keys=7, dim=4, value_dim=3):
    shapes = (*batch, queries, dim), (*batch, keys, dim), (*batch, keys, value_dim)
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def assert_close(found, exact):
    if found.dtype == torch.float32 and not found.is_cpu:  # triton's; products of a larger batch may round otherwise
        bounds.assert_close(found, exact, bounds.roundings(exact, 64, torch.float32))
    else:
        bounds.assert_close(found, exact, bounds.roundings(exact, 256))


# --- vmap ------------------------------------------------------------------------------------------------------

SCORES = {
    "dot": lambda: ScaledDot(),
    "gaussian": lambda: Gaussian(1.5, learnable=True),
    "additive": lambda: Additive(4, 4, 6),
    "callable": lambda: lambda q, k: -(q.unsqueeze(-2) - k.unsqueeze(-3)).abs().sum(-1),
}
BOTH = [(backend, score) for backend in ("reference", "blocked", "auto") for score in SCORES]
BOTH += [("torch", "dot"), ("triton", "gaussian"), ("triton", "additive")]


def made(score, dtype=torch.float64):
    score = SCORES[score]()
    return score.to(dtype) if isinstance(score, torch.nn.Module) else score


def dtype_of(backend):
    """The most exact dtype that a backend takes."""
    return torch.float32 if backend == "triton" else torch.float64


@INTERPRETED
@pytest.mark.parametrize(("backend", "score"), BOTH)
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 1, 0), (2, 1, None)], ids=str)
def test_vmap_is_a_loop_over_the_mapped_axis(in_dims, backend, score):
    score, tokens = made(score, dtype_of(backend)), [x.to(dtype_of(backend)) for x in drawn(2)]
    tokens = [x if dim is None else torch.stack([x, 2 * x, -x], dim) for x, dim in zip(tokens, in_dims, strict=True)]

    def pooled(query, key, value):
        return regard.attend(query, key, value, score, Mask.causal(align="top_left"), backend=backend)

    found = vmap(pooled, in_dims)(*tokens)
    for at in range(3):
        one = [x if dim is None else x.select(dim, at) for x, dim in zip(tokens, in_dims, strict=True)]
        assert_close(found[at], pooled(*one))


@INTERPRETED
@pytest.mark.parametrize("mask", [None, Mask.lengths(torch.tensor([[4], [6]]))], ids=["all", "lengths"])
@pytest.mark.parametrize("score", ["gaussian", "additive"])
@pytest.mark.parametrize("backend", ["reference", "blocked", "triton", "auto"])
def test_vmap_over_queries_whose_keys_are_shared_in_turns(backend, score, mask):
    """With the mapped axis the keys are shared along batch axes 0 and 2, and not along axis 1."""
    dtype = dtype_of(backend)
    score, queries = made(score, dtype), torch.randn(2, 2, 2, 3, 4, dtype=dtype)
    bias = torch.randn(2, 1, 1, 7, dtype=dtype)
    _, key, value = (x.to(dtype) for x in drawn(2, 1))

    def pooled(query, key, bias):
        record = regard.inspect(query, key, value, score, mask, bias=bias, backend=backend)
        return record.output.square().sum() + record.log_mass.sum()

    gradients = grad(pooled, argnums=(0, 1, 2))
    found = vmap(gradients, (0, None, None))(queries, key, bias)
    expected = [gradients(query, key, bias) for query in queries]
    for mapped, looped in zip(found, zip(*expected, strict=True), strict=True):
        assert_close(mapped, torch.stack(looped))


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("mapped", ["bias", "mask", "lengths"])
def test_vmap_over_bias_or_mask_alone(mapped, backend):
    tokens = drawn(2)
    many = {
        "bias": torch.randn(6, 5, 7, dtype=torch.float64),
        "mask": torch.rand(6, 5, 7) < 0.5,
        "lengths": torch.randint(8, (6, 2)),
    }[mapped]
    words = {
        "bias": lambda x: {"bias": x},
        "mask": lambda x: {"mask": Mask.keep(x)},
        "lengths": lambda x: {"mask": Mask.lengths(x)},
    }[mapped]

    def pooled(given):
        return regard.attend(*tokens, backend=backend, **words(given))

    found = vmap(pooled)(many)
    for at in range(6):
        assert_close(found[at], pooled(many[at]))


@pytest.mark.parametrize("backend", ["reference", "blocked", "auto"])
@pytest.mark.parametrize("mask", [Mask.window(None, None, "top_left"), Mask.causal("top_left")], ids=str)
def test_gradients_per_sample_under_a_mask_without_batch_axes(mask, backend):
    tokens = [torch.stack([x, x.flip(0)]) for x in drawn(2)]

    def loss(*sample):
        return regard.attend(*sample, "gaussian", mask, backend=backend).square().sum()

    found = vmap(grad(loss, argnums=(0, 1, 2)))(*tokens)
    for at in range(2):
        leaves = [x[at].clone().requires_grad_() for x in tokens]
        for many, gradient in zip(found, torch.autograd.grad(loss(*leaves), leaves), strict=True):
            assert_close(many[at], gradient)


@pytest.mark.parametrize("backend", ["reference", "blocked", "auto"])
@pytest.mark.parametrize("score", ["gaussian", "additive", "dot"])
def test_gradients_per_sample_are_those_of_each_sample_alone(score, backend):
    score = made(score)
    parameters = {f"score.{name}": p for name, p in score.named_parameters()}
    query, key, value = drawn(6)
    lengths = torch.tensor([7, 5, 3, 1, 0, 7])

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.score = score

        def forward(self, query, key, value, length):
            mask = Mask.lengths(length)
            record = regard.inspect(query, key, value, self.score, mask, backend=backend)
            return record.output.square().sum() + record.log_mass.masked_fill(record.log_mass == -torch.inf, 0).sum()

    def loss(parameters, *sample):
        return functional_call(Loss(), parameters, sample)

    every = grad(loss, argnums=(0, 1, 2))
    per_sample = vmap(every, in_dims=(None, 0, 0, 0, 0))(parameters, query, key, value, lengths)
    for at in range(6):
        to_parameters, *to_tokens = every(parameters, query[at], key[at], value[at], lengths[at])
        for name, gradient in to_parameters.items():
            assert_close(per_sample[0][name][at], gradient)
        for many, gradient in zip(per_sample[1:], to_tokens, strict=True):
            assert_close(many[at], gradient)


@pytest.mark.parametrize("backend", NAMES)
def test_vmap_with_dropout_draws_anew_for_every_element(backend):
    query, key, value = (x.expand(4, *x.shape) for x in drawn(2))

    def pooled(*tokens):
        return regard.attend(*tokens, dropout=0.5, backend=backend)

    found = vmap(pooled, randomness="different")(query, key, value)
    assert not torch.equal(found[0], found[1])


# --- compile and export ----------------------------------------------------------------------------------------


def rich(backend):
    """One caller with masks, a bias, and every kind of score that the backend takes."""
    additive, gaussian = Additive(4, 4, 6).double(), Gaussian(1.5, learnable=True).double()
    parameters = [*additive.parameters(), *gaussian.parameters()]

    def caller(query, key, value, bias, lengths):
        mask = Mask.causal(align="lower_right") & Mask.lengths(lengths)
        total = regard.attend(query, key, value, mask=mask, backend=backend)
        if backend != "torch":
            total = total + regard.attend(query, key, value, additive, mask, bias=bias, backend=backend)
            record = regard.inspect(query, key, value, gaussian, Mask.keep(bias.detach() > 0), backend=backend)
            total = total + record.output + record.log_mass.clamp_min(-5).unsqueeze(-1)
            total = total + regard.attend(query, key, value, "biweight", bias=bias, backend=backend)
        return total

    return caller, (parameters if backend != "torch" else [])


def arguments(backend):
    tokens = [x.requires_grad_() for x in drawn(2)]
    bias = torch.randn(2, 5, 7, dtype=torch.float64).requires_grad_(backend != "torch")
    return [*tokens, bias], torch.tensor([7, 4])


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, as inductor loads
def test_a_caller_compiles_whole_forward_and_backward(backend):
    caller, parameters = rich(backend)
    tensors, lengths = arguments(backend)
    leaves = [x for x in tensors if x.requires_grad and (backend != "torch" or x is not tensors[3])] + parameters
    expected = caller(*tensors, lengths)
    compiled = torch.compile(caller, fullgraph=True, backend="aot_eager")(*tensors, lengths)
    assert_close(compiled, expected)
    cotangent = torch.randn_like(expected)
    found = torch.autograd.grad(compiled, leaves, cotangent)
    for left, right in zip(found, torch.autograd.grad(expected, leaves, cotangent), strict=True):
        assert_close(left, right)


def test_records_merges_and_callables_in_blocks_compile(set_limits):
    set_limits(row_block_elements=1, row_block_queries=2)
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    leaves = [x.requires_grad_() for x in drawn(2)]

    def caller(query, key, value, weight):
        matrix = weight.tanh()
        lengths = Mask.lengths(torch.tensor([4, 0], device=query.device))
        record = regard.inspect(query, key, value, "gaussian", lengths, backend="blocked")
        parts = [regard.inspect(query, key[:, at], value[:, at], lambda q, k: (q @ matrix) @ k.mT, backend="blocked")
                 for at in (slice(0, 3), slice(3, None))]  # fmt: skip
        return regard.merge(parts).output.sum(-1) + record.entropy() + record.weights().square().sum(-1)

    expected = caller(*leaves, weight)
    compiled = torch.compile(caller, fullgraph=True, backend="aot_eager")(*leaves, weight)
    assert_close(compiled, expected)
    found = torch.autograd.grad(compiled.sum(), (*leaves, weight))
    for left, right in zip(found, torch.autograd.grad(expected.sum(), (*leaves, weight)), strict=True):
        assert_close(left, right)


def test_a_caller_compiles_with_sizes_that_change():
    def caller(query, key, value):
        return regard.attend(query, key, value, "gaussian", Mask.causal(align="top_left"), backend="blocked")

    compiled = torch.compile(caller, fullgraph=True, backend="aot_eager", dynamic=True)
    for queries, keys in ((5, 7), (6, 9), (11, 4)):
        tokens = drawn(2, queries=queries, keys=keys)
        assert_close(compiled(*tokens), caller(*tokens))


LOOKS = {
    "a band that follows both sizes": lambda q, k, v: regard.attend(
        q, k, v, "gaussian", Mask.causal(align="lower_right"), backend="blocked"
    ),
    "weights": lambda q, k, v: regard.inspect(q, k, v, "gaussian").weights(),
    "entropy": lambda q, k, v: regard.inspect(q, k, v).entropy(),
    "weights of some rows": lambda q, k, v: regard.inspect(q, k, v).weights(rows=[0, -1]),
}


@pytest.mark.parametrize("caller", LOOKS.values(), ids=LOOKS)
def test_sizes_that_change_need_no_program_each(caller):
    from torch._dynamo.testing import CompileCounter  # over a second; for this test only

    programs = CompileCounter()
    compiled = torch.compile(caller, fullgraph=True, backend=programs)
    for queries in range(3, 12):
        tokens = drawn(2, queries=queries, keys=2 * queries)
        assert_close(compiled(*tokens), caller(*tokens))
    assert programs.frame_count <= 3  # of the first sizes, and of any


@pytest.mark.parametrize("backend", ["blocked", "torch"])
def test_dropout_compiles(backend):
    query, key, value = drawn(2)

    def caller(query, key, value):
        return regard.attend(query, key, value, dropout=0.5, backend=backend)

    compiled = torch.compile(caller, fullgraph=True, backend="aot_eager")
    value.requires_grad_()
    output = compiled(query, key, value)
    cotangent = torch.randn_like(output)
    (gradient,) = torch.autograd.grad(output, value, cotangent)
    assert_close((gradient * value).sum(), (output * cotangent).sum())
    assert not torch.equal(output, compiled(query, key, value))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, as inductor loads
def test_a_caller_compiles_with_inductor():
    """One call of each custom operator inside ordinary code; fused operations may round otherwise."""
    if not can_compile_loops():
        pytest.skip("inductor needs a C++ compiler")
    query, key, value = (x.float().requires_grad_() for x in drawn(2))

    def caller(query, key, value):
        return regard.attend(
            query.sin(), key, value, "gaussian", Mask.causal(align="top_left"), backend="blocked"
        ).cos()

    expected = caller(query, key, value)
    compiled = torch.compile(caller, fullgraph=True)(query, key, value)
    bounds.assert_close(compiled, expected, bounds.roundings(expected, 64, torch.float32))
    found = torch.autograd.grad(compiled.sum(), (query, key, value))
    for left, right in zip(found, torch.autograd.grad(expected.sum(), (query, key, value)), strict=True):
        bounds.assert_close(left, right, bounds.roundings(right, 64, torch.float32))


class Exported(torch.nn.Module):
    """A module that calls attend, to be exported."""

    def __init__(self, backend):
        super().__init__()
        self.score, self.backend = Additive(4, 4, 6).double(), backend

    def forward(self, query, key, value, lengths):
        return regard.attend(query, key, value, self.score, Mask.lengths(lengths), backend=self.backend)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_a_module_exports(backend):
    module, tokens, lengths = Exported(backend), drawn(2), torch.tensor([7, 4])
    program = torch.export.export(module, (*tokens, lengths))
    assert_close(program.module()(*tokens, lengths), module(*tokens, lengths))
    again, shorter = drawn(2), torch.tensor([2, 0])
    assert_close(program.module()(*again, shorter), module(*again, shorter))


@pytest.mark.filterwarnings("ignore")  # of torch.jit, that it is old and bakes numbers in
def test_bands_that_follow_sizes_can_be_traced_and_hold_any_number():
    tokens = drawn(2)

    def caller(query, key, value):
        mask = Mask.causal("lower_right") & Mask.window(10**20, sys.maxsize, "lower_right")
        return regard.attend(query, key, value, "gaussian", mask, backend="blocked")

    expected = caller(*tokens)
    assert_close(torch.jit.trace(caller, tokens, check_trace=False)(*tokens), expected)
    assert_close(torch.compile(caller, fullgraph=True, backend="eager")(*tokens), expected)
    assert_close(vmap(caller)(*tokens), expected)


class Banded(torch.nn.Module):
    """A module whose mask depends on the sizes of its call, to be exported."""

    def __init__(self, score, mask):
        super().__init__()
        self.score, self.mask = score, mask

    def forward(self, query, key, value):
        return regard.attend(query, key, value, self.score, self.mask)


class Recalling(torch.nn.Module):
    """Remembers and recalls at once."""

    def __init__(self):
        super().__init__()
        self.layer = regard.Attention("gaussian")

    def forward(self, query, key, value):
        return self.layer.recall(query, self.layer.remember(key, value, Mask.causal()))


EXPORTED = {
    f"{score}, {mask}": lambda score=score, mask=mask: Banded(score, mask)
    for score in ("gaussian", "scaled_dot")
    for mask in (Mask.causal("lower_right"), Mask.window(2, 1, "lower_right"))
} | {"recall": Recalling}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("make", EXPORTED.values(), ids=EXPORTED)
def test_one_exported_program_serves_queries_and_keys_of_any_number(make, strict):
    module, keys = make(), {1: torch.export.Dim("keys", min=2, max=64)}
    sizes = ({1: torch.export.Dim("queries", min=2, max=64)}, keys, keys)
    program = torch.export.export(module, tuple(drawn(2)), dynamic_shapes=sizes, strict=strict).module()
    for queries, count in ((5, 7), (6, 6), (9, 3), (2, 9)):
        tokens = drawn(2, queries=queries, keys=count)
        assert_close(program(*tokens), module(*tokens))


class Padded(torch.nn.Module):
    """A module whose mask is lengths that it is given, to be exported."""

    def __init__(self, score):
        super().__init__()
        self.score = score

    def forward(self, tokens, lengths):
        return regard.attend(tokens, tokens, tokens, self.score, Mask.lengths(lengths))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "score", [regard.scores.ScaledDot(), regard.scores.Gaussian(), Additive.of_projected(4)], ids=str
)
def test_one_exported_program_serves_padded_batches_of_any_size(score, strict):
    """Small ones and large: what a call on its own reads, and where it takes a shorter way, no program decides."""
    module, free = Padded(score).double(), torch.export.Dim.DYNAMIC
    small = torch.randn(2, 5, 4, dtype=torch.float64), torch.tensor([3, 5])
    shapes = ({0: free, 1: free}, {0: free})
    with torch.no_grad():
        program = torch.export.export(module, small, dynamic_shapes=shapes, strict=strict).module()
        for batch, tokens in ((2, 7), (3, 40), (33, 600)):
            inputs = torch.randn(batch, tokens, 4, dtype=torch.float64), torch.randint(1, tokens + 1, (batch,))
            assert_close(program(*inputs), module(*inputs))


# --- autocast, no_grad, inference ------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["scaled_dot", "cosine", "additive", "bilinear"])
@pytest.mark.parametrize("backend", ["reference", "blocked", "auto"])
def test_autocast_casts_the_tokens_and_accumulates_in_float32(backend, score):
    built = {"additive": Additive(4, 4, 6), "bilinear": regard.scores.Bilinear(4, 4)}
    module = built[score] if score in built else NAMED_SCORES[score]()
    query, key, value = (x.float().requires_grad_() for x in drawn(2))
    with torch.autocast(query.device.type, torch.bfloat16):
        record = regard.inspect(query, key, value, module, backend=backend)
    assert record.output.dtype == torch.bfloat16
    assert record.log_mass.dtype == torch.float32
    half = [x.detach().bfloat16() for x in (query, key, value)]
    reference = regard.attend(*half, module.bfloat16())
    exact = regard.attend(*(x.double() for x in half), module.double())
    # The float32 parameters of a score under autocast are rounded once where those of a bfloat16 score are stored so.
    own = bounds.error(reference, exact)
    bounds.assert_close(record.output, exact, bounds.band(exact, own, torch.bfloat16))
    gradients = torch.autograd.grad(record.output.float().sum(), (query, key, value))
    assert all(gradient.dtype == torch.float32 and gradient.isfinite().all() for gradient in gradients)


@INTERPRETED
@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("name", ["gaussian", "laplacian", "boxcar", "squared_distance", "rotary gaussian"])
@pytest.mark.parametrize("backend", ["reference", "blocked", "triton", "auto"])
def test_autocast_does_not_round_tokens_whose_distance_is_taken(backend, name, size):
    # Large is several tiles of the backend; Triton's interpreter would take seconds for 300 tokens.
    tokens = 20 if size == "small" else 130 if backend == "triton" else 300
    score = regard.scores.Rotary("gaussian") if name == "rotary gaussian" else NAMED_SCORES[name]()
    query, key = (100 + torch.randn(1, tokens, 2) for _ in range(2))
    value = torch.randn(1, tokens, 3)
    leaves = [x.requires_grad_() for x in (query, key, value)]
    with torch.autocast(query.device.type, torch.bfloat16):
        record = regard.inspect(*leaves, score, backend=backend)
        output = regard.Attention(score)(*leaves)
    exact = regard.inspect(query.double(), key.double(), value.bfloat16().double(), score)
    assert record.output.dtype == output.dtype == torch.bfloat16
    assert record.log_mass.dtype == torch.float32
    rounding = torch.finfo(torch.bfloat16).eps * exact.output.abs().max().item()
    torch.testing.assert_close(record.output.double(), exact.output, atol=rounding, rtol=0)
    torch.testing.assert_close(output.double(), exact.output, atol=rounding, rtol=0)
    torch.testing.assert_close(record.log_mass.double(), exact.log_mass, atol=1e-3, rtol=0)
    found = torch.autograd.grad(record.output.float().square().sum(), leaves, materialize_grads=True, allow_unused=True)
    assert all(gradient.dtype == torch.float32 and gradient.isfinite().all() for gradient in found)


def test_autocast_reconciles_tokens_of_different_dtypes_whose_distance_is_taken():
    query, key, value = (x.float() for x in drawn(2))
    with torch.autocast(query.device.type, torch.bfloat16):
        expected = regard.attend(query, key, value, "gaussian")
        assert torch.equal(regard.attend(query, key, value.bfloat16(), "gaussian"), expected)
        exact = regard.attend(query.bfloat16().float(), key, value, "gaussian")
        assert torch.equal(regard.attend(query.bfloat16(), key, value, "gaussian"), exact)


@pytest.mark.parametrize("score", ["scaled_dot", lambda q, k: q @ k.mT], ids=["dot", "callable"])
def test_autocast_reconciles_tokens_of_different_dtypes(score):
    """As a norm gives float32 under autocast, and a linear layer beside it half precision."""
    query, key, value = (x.float() for x in drawn(2))
    with torch.autocast(query.device.type, torch.bfloat16):
        mixed = regard.attend(query, key, value.bfloat16(), score)
        assert torch.equal(mixed, regard.attend(query.bfloat16(), key, value, score))
        with refuses("key", "float32", "query is float64"):
            regard.attend(query.double(), key, value, score)
    assert mixed.dtype == torch.bfloat16
    with refuses("value", "bfloat16", "query is float32"):
        regard.attend(query, key, value.bfloat16(), score)


@pytest.mark.parametrize("make", [lambda: Additive(4, 4, 6), lambda: regard.scores.Bilinear(4, 4)])
def test_autocast_does_not_reconcile_parameters_in_float64(make):
    query, key, value = (x.float() for x in drawn(2))
    with (
        torch.autocast(query.device.type, torch.bfloat16),
        refuses("query", "float64"),
    ):
        regard.attend(query, key.bfloat16(), value, make().double())


def test_autocast_leaves_float64_alone():
    tokens = drawn(2)
    with torch.autocast(tokens[0].device.type, torch.bfloat16):
        assert regard.attend(*tokens).dtype == torch.float64


@INTERPRETED
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("backend", "score"), BOTH)
def test_without_gradients_the_numbers_are_the_same(backend, score, mode):
    score, tokens = made(score, dtype_of(backend)), [x.to(dtype_of(backend)) for x in drawn(2)]
    expected = regard.attend(*tokens, score, backend=backend)
    with mode():
        output = regard.attend(*tokens, score, backend=backend)
        assert not output.requires_grad
        assert_close(output, expected.detach())


def test_inference_tensors_can_be_pooled_and_inspected():
    with torch.inference_mode():
        tokens = drawn(2)
        record = regard.inspect(*tokens, "gaussian", Mask.lengths(torch.tensor([3, 0])), backend="blocked")
        assert record.entropy().shape == (2, 5)
        assert record.top(2).keys.shape == (2, 5, 2)


def test_weights_asked_for_under_autocast_are_those_of_the_pooling():
    query, key, value = 4 * torch.randn(2, 64, 32), 4 * torch.randn(2, 64, 32), torch.randn(2, 64, 3)
    with torch.autocast(query.device.type, torch.bfloat16):
        record = regard.inspect(query, key, value)
        layer = regard.MultiHeadAttention(32, 4).inspect(query)
        for weights in (record.weights(), layer.weights()):
            assert weights.dtype == torch.float32
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "make", [lambda: regard.Attention(regard.scores.Additive(8, 8, 4)), lambda: regard.MultiHeadAttention(8, 2)]
)
def test_float64_under_autocast_is_refused_where_parameters_are_not(make):
    tokens = torch.randn(2, 5, 8, dtype=torch.float64)
    with torch.autocast(tokens.device.type, torch.bfloat16), refuses("query", "dtype"):
        make()(tokens, tokens, tokens)
