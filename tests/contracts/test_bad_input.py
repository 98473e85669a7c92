"""Hundreds of calls, good and bad: each gives a result of the right shape or a RegardError, and nothing else."""

import math

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.contracts.cases import POSITIONED
from tests.refuses import refuses

import regard
from regard import Mask, RegardError, scores
from regard.backends.dispatch import BACKENDS
from regard.checks import FLOATS
from regard.scores.names import KERNEL_SCORES, NAMED_SCORES, SIZED_SCORES

# Triton's interpreter lets NumPy warn where a row has no key.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

EXAMPLES = 4 * settings().max_examples

sizes = st.sampled_from([0, 1, 2, 2, 3, 3, 4, 5])
batches = st.lists(sizes, max_size=3).map(tuple)
odd = st.sampled_from(
    [None, True, False, "", "x", -1, 0, 3, 2.5, math.nan, math.inf, [], {}, (), object(), torch.zeros(2), torch.eye(3)]
)
words = st.sampled_from(["lengths", "per query", "keep", "drop", "keys", "documents", "causal", "window", "odd"])
backends = st.sampled_from([*BACKENDS, "auto", "auto", "auto"])


def fill(shape, dtype):
    return torch.zeros(shape, dtype=dtype) if dtype == torch.bool else torch.ones(shape).to(dtype)


def tokens(shape, dtype=torch.float32):
    """Real numbers, whatever the dtype."""
    return torch.randn(shape).to(dtype)


@st.composite
def fitting(draw):
    """Query, key and value that belong together; some batch axes are shared, any size may be 0."""
    batch = draw(batches)
    queries, keys, dim, value_dim = (draw(sizes) for _ in range(4))
    dtype = draw(st.sampled_from(FLOATS))
    shapes = []
    for tail in ((queries, dim), (keys, dim), (keys, value_dim)):
        shared = tuple(1 if draw(st.integers(0, 3)) == 0 else axis for axis in batch)
        shapes.append((*shared, *tail))
    return [tokens(shape, dtype) for shape in shapes]


@st.composite
def masks(draw, query, key):
    """A mask of any word, of sizes that fit or nearly do; or something that is no mask."""
    near = st.sampled_from([0, 0, 0, 0, 0, -1, 1])
    queries, keys = max(query.shape[-2] + draw(near), 0), max(key.shape[-2] + draw(near), 0)
    batch = tuple(torch.broadcast_shapes(query.shape[:-2], key.shape[:-2]))
    batch = draw(st.sampled_from([batch, batch, batch, batch[:1], batch[1:], ()]) | batches)
    align = draw(st.sampled_from([None, "top_left", "lower_right"]))
    match draw(words):
        case "lengths":
            return Mask.lengths(torch.randint(-2, keys + 3, batch))
        case "per query":
            return Mask.lengths_per_query(torch.randint(-2, keys + 3, (*batch, queries)))
        case "keep":
            return Mask.keep(torch.rand(*batch, queries, keys) < 0.5)
        case "drop":
            return Mask.drop(torch.rand(*batch, queries, keys) < 0.5)
        case "keys":
            return Mask.keys(torch.rand(*batch, keys) < 0.5)
        case "documents":
            return Mask.documents(torch.randint(3, (*batch, queries)), torch.randint(3, (*batch, keys)))
        case "causal":
            return Mask.causal(align)
        case "window":
            return Mask.window(draw(st.sampled_from([None, 0, 2])), draw(st.sampled_from([None, 0, 1])), align)
    return draw(odd)


@st.composite
def some_scores(draw, query, key):
    """A score that fits, one built for other sizes, one with heads, a callable, or nonsense."""
    kind = draw(st.sampled_from(["name", "name", "sized", "heads", "kernel", "sink", "callable", "rotary", "odd"]))
    dtype = query.dtype if draw(st.booleans()) else torch.float32
    left, right = (max(x.shape[-1], 1) if draw(st.integers(0, 4)) else 3 for x in (query, key))
    match kind:
        case "name":
            return draw(st.sampled_from([*NAMED_SCORES, *SIZED_SCORES, "nonsense"]))
        case "sized":
            return draw(st.sampled_from([scores.Bilinear(left, right), scores.Additive(left, right, 3)])).to(dtype)
        case "heads":
            heads = draw(st.sampled_from([1, 2, 3]))
            widths = torch.ones(heads, draw(st.sampled_from([1, left])))
            choices = (
                scores.Bilinear(left, right, heads=heads),
                scores.Additive.of_projected(left, heads),
                scores.Gaussian(widths, learnable=True),
                scores.Epanechnikov(widths),
            )
            return draw(st.sampled_from(choices)).to(dtype)
        case "kernel":
            return draw(st.sampled_from(list(KERNEL_SCORES.values())))(
                draw(st.sampled_from([1e-30, 0.5, [1.0, 2.0, 3.0]]))
            )
        case "sink":
            return scores.ScaledDot(softcap=draw(st.sampled_from([None, 2.0])), sink=draw(st.sampled_from([1, 2, 3])))
        case "rotary":
            return POSITIONED["rotary"]()
        case "callable":
            wrong = draw(st.sampled_from([None, None, (2, 2), (3, 2, 2), (5,)]))
            plain = lambda q, k: q.sum(-1, keepdim=True) - k.sum(-1)[..., None, :]  # noqa: E731
            return plain if wrong is None else lambda q, k: tokens(wrong)
    return draw(odd.filter(lambda x: not callable(x)))


@st.composite
def biases(draw, query, key):
    kind = draw(st.sampled_from(["none", "none", "full", "shared", "any", "callable", "dtype", "odd"]))
    queries, keys = query.shape[-2], key.shape[-2]
    match kind:
        case "none":
            return None
        case "full":
            return tokens((queries, keys), draw(st.sampled_from(FLOATS)))
        case "shared":
            return tokens((1, keys)) if draw(st.booleans()) else tokens((queries, 1))
        case "any":
            return tokens(draw(batches))
        case "dtype":
            return fill((queries, keys), draw(st.sampled_from([torch.int64, torch.bool, torch.complex64])))
        case "callable":
            wrong = draw(st.sampled_from([None, (2, 2), (3,)]))
            return lambda i, j: -(i[:, None] - j).abs().float() if wrong is None else tokens(wrong)
    return draw(odd)


def check_text(error):
    assert error.argument
    assert error.repair
    assert str(error).startswith(f"{error.argument}: got ")


def assert_defined(query, key, value, *arguments, **settings):
    """A result of the right shape, or a RegardError; under attend and inspect, forward and backward."""
    query, key, value = (x.requires_grad_() for x in (query, key, value))
    try:
        output = regard.attend(query, key, value, *arguments, **settings)
    except RegardError as error:
        event("refused: " + error.argument)
        check_text(error)
        return
    event("pooled")
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value)))
    shape = output.shape
    assert len(shape) == query.ndim
    # A score's own axes (heads) may stand where the inputs have size 1.
    assert all(size == want or want == 1 for size, want in zip(shape[:-2], batch, strict=True))
    assert shape[-2:] == (query.shape[-2], value.shape[-1])
    assert output.dtype == value.dtype
    assert not output.isnan().any()
    gradients = torch.autograd.grad(output.sum(), (query, key, value), allow_unused=True, materialize_grads=True)
    for gradient, source in zip(gradients, (query, key, value), strict=True):
        assert gradient.shape == source.shape
        assert gradient.isfinite().all()


@settings(max_examples=EXAMPLES)
@given(data=st.data(), backend=backends)
def test_inputs_that_fit_under_any_score_mask_and_bias(data, backend):
    query, key, value = data.draw(fitting())
    score = data.draw(some_scores(query, key))
    mask = data.draw(st.one_of(st.none(), masks(query, key)))
    bias = data.draw(biases(query, key))
    dropout = data.draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))
    assert_defined(query, key, value, score, mask, bias=bias, dropout=dropout, backend=backend)


@settings(max_examples=EXAMPLES)
@given(
    shapes=st.tuples(*(st.lists(sizes, max_size=4).map(tuple) for _ in range(3))),
    dtypes=st.tuples(*(st.sampled_from([*FLOATS[:2], *FLOATS[:2], torch.int64, torch.complex64]) for _ in range(3))),
    score=st.sampled_from([*NAMED_SCORES, "nonsense"]),
    backend=backends,
)
def test_inputs_of_any_shape_and_dtype(shapes, dtypes, score, backend):
    inputs = [fill(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    if any(not x.is_floating_point() and not x.is_complex() for x in inputs):
        with pytest.raises(RegardError):  # about any of the arguments: not `refuses`
            regard.attend(*inputs, score, backend=backend)
    else:
        assert_defined(*inputs, score, backend=backend)


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_arguments_of_any_kind(data):
    """One argument at a time is nonsense."""
    arguments = {"query": tokens((2, 5, 3)), "key": tokens((2, 7, 3)), "value": tokens((2, 7, 4))}
    name = data.draw(st.sampled_from([*arguments, "score", "mask", "bias", "dropout", "tolerance", "backend"]))
    arguments[name] = data.draw(odd)
    try:
        output = regard.attend(**arguments)
    except RegardError:
        return
    assert output.shape == (2, 5, 4)


@settings(max_examples=settings().max_examples)
@given(data=st.data(), name=st.sampled_from(sorted(set(scores.__all__) - {"Score"})))
def test_scores_built_from_anything(data, name):
    """A constructor given nonsense refuses it, or builds a score that runs or refuses."""
    count = {"Additive": 3, "Bilinear": 2, "SquaredDistance": 0, "Dot": 0}.get(name, 1)
    built_from = [data.draw(odd) for _ in range(count)]
    try:
        score = getattr(scores, name)(*built_from)
        output = regard.attend(tokens((2, 5, 3)), tokens((2, 7, 3)), tokens((2, 7, 4)), score)
    except RegardError:
        return
    assert output.shape == (2, 5, 4)


@settings(max_examples=settings().max_examples)
@given(data=st.data())
def test_questions_of_any_kind_to_a_record(data):
    record = regard.inspect(tokens((2, 5, 3)), tokens((2, 7, 3)), tokens((2, 7, 4)), "gaussian")
    question = data.draw(st.sampled_from(["rows", "k"]))
    answer = data.draw(odd)
    try:
        found = record.top(answer).weights if question == "k" else record.weights(rows=answer)
    except RegardError:
        return
    assert found.shape[0] == 2


EMPTY = {
    "no keys": ((2, 5, 3), (2, 0, 3), (2, 0, 4)),
    "no queries": ((2, 0, 3), (2, 7, 3), (2, 7, 4)),
    "no batch": ((0, 5, 3), (0, 7, 3), (0, 7, 4)),
    "no dim": ((2, 5, 0), (2, 7, 0), (2, 7, 4)),
    "no value dim": ((2, 5, 3), (2, 7, 3), (2, 7, 0)),
    "shared with no batch": ((1, 5, 3), (0, 7, 3), (1, 7, 4)),
}


@pytest.mark.parametrize("score", NAMED_SCORES)
@pytest.mark.parametrize("case", EMPTY)
def test_empty_inputs_have_a_result_with_gradients_and_weights(case, score):
    query, key, value = (torch.randn(shape, requires_grad=True) for shape in EMPTY[case])
    record = regard.inspect(query, key, value, score)
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    assert record.output.shape == (*batch, query.shape[-2], value.shape[-1])
    assert record.weights().shape == (*batch, query.shape[-2], key.shape[-2])
    assert record.entropy().shape == record.log_mass.shape == (*batch, query.shape[-2])
    assert record.key_mass().shape == (*batch, key.shape[-2])
    assert not record.output.isnan().any()
    gradients = torch.autograd.grad(record.output.sum(), (query, key, value), allow_unused=True, materialize_grads=True)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_without_keys_the_output_is_0_and_the_mass_nothing():
    query, key, value = (torch.randn(shape) for shape in EMPTY["no keys"])
    record = regard.inspect(query, key, value, "gaussian")
    assert (record.output == 0).all()
    assert (record.log_mass == -math.inf).all()
    assert (record.entropy() == 0).all()


@pytest.mark.parametrize("case", EMPTY)
def test_empty_inputs_are_refused_by_blocks_with_the_reason(case):
    with refuses("backend", "blocked", "refuses", "empty"):
        regard.attend(*(torch.randn(shape) for shape in EMPTY[case]), backend="blocked")


def test_values_are_not_scanned_and_nan_is_passed_on():
    query, key, value = torch.randn(2, 5, 3), torch.randn(2, 7, 3), torch.randn(2, 7, 4)
    query[0, 0, 0] = math.nan
    for backend in BACKENDS:
        score = "gaussian" if backend == "triton" else "scaled_dot"
        output = regard.attend(query, key, value, score, backend=backend)
        assert output[0, 0].isnan().all()
        assert output[0, 1:].isfinite().all()
        assert output[1].isfinite().all()
