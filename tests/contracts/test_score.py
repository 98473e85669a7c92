"""The contract of scores: every public class and every name against its formula, through public names only."""

import copy
import inspect
import math
import pickle
import re

import numpy as np
import pytest
import torch
from tests import bounds, oracle
from tests.refuses import refuses

import regard
from regard import MultiHeadAttention, RegardError, attend, scores
from regard.scores import Score
from regard.testing import check_score

CLASSES = {name: getattr(scores, name) for name in scores.__all__ if name != "Score"}
KERNELS = [name for name, kind in CLASSES.items() if "bandwidth" in inspect.signature(kind).parameters]
# A score that can be built without arguments has a name: its class name in snake case. Rotary wraps another score.
NAMES = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): name
    for name, kind in CLASSES.items()
    if name != "Rotary" and all(p.default is not p.empty for p in inspect.signature(kind).parameters.values())
}
LAYER_NAMES = [*NAMES, "additive", "bilinear"]
QUERIES, KEYS, DIM, VALUE_DIM = 5, 7, 4, 3


def array(tensor):
    return tensor.detach().double().cpu().numpy()


def bandwidth_of(score):
    return array(score.bandwidth) if isinstance(score.bandwidth, torch.Tensor) else score.bandwidth


def kernel_case(name, width):
    by_name = next(key for key, kind in NAMES.items() if kind == name)
    return (
        lambda: CLASSES[name](width),
        lambda score: lambda q, k: oracle.log_kernel(by_name, q, k, bandwidth_of(score)),
        DIM,
        DIM,
    )


# A score, its formula of one pair given the score, and the sizes of a query and a key.
CASES = {
    "Dot": (scores.Dot, lambda score: oracle.dot, DIM, DIM),
    "ScaledDot": (scores.ScaledDot, lambda score: oracle.scaled_dot, DIM, DIM),
    "ScaledDot scale": (lambda: scores.ScaledDot(0.7), lambda score: lambda q, k: 0.7 * oracle.dot(q, k), DIM, DIM),
    "ScaledDot softcap": (
        lambda: scores.ScaledDot(softcap=1.5),
        lambda score: lambda q, k: oracle.softcap(oracle.scaled_dot(q, k), 1.5),
        DIM,
        DIM,
    ),
    "Cosine": (scores.Cosine, lambda score: oracle.cosine, DIM, DIM),
    "Cosine scale": (lambda: scores.Cosine(3.0), lambda score: lambda q, k: 3.0 * oracle.cosine(q, k), DIM, DIM),
    "Bilinear": (
        lambda: scores.Bilinear(3, 5),
        lambda score: lambda q, k: oracle.bilinear(q, k, array(score.matrix)),
        3,
        5,
    ),
    "Bilinear scale": (
        lambda: scores.Bilinear(5, 3, scale=1.0),
        lambda score: lambda q, k: oracle.bilinear(q, k, array(score.matrix), 1.0),
        5,
        3,
    ),
    "Additive": (
        lambda: scores.Additive(3, 5, 7),
        lambda score: (
            lambda q, k: oracle.additive(q, k, array(score.query_weight), array(score.key_weight), array(score.weight))
        ),
        3,
        5,
    ),
    "SquaredDistance": (scores.SquaredDistance, lambda score: oracle.squared_distance, DIM, DIM),
    **{name: kernel_case(name, 2.5) for name in KERNELS},
    "Gaussian per dimension": kernel_case("Gaussian", [0.5, 1.0, 2.0, 4.0]),
    "Tricube per dimension": kernel_case("Tricube", [2.0, 3.0, 5.0, 7.0]),
}
LEARNABLE = [name for name in KERNELS if name != "Boxcar"]


def tokens(name, batch=(), dtype=torch.float64):
    """A query, a key and a value for the case of that name; near each other, so that compact kernels reach."""
    _, _, query_dim, key_dim = CASES[name]
    query = 0.5 * torch.randn(*batch, QUERIES, query_dim, dtype=dtype)
    key = 0.5 * torch.randn(*batch, KEYS, key_dim, dtype=dtype)
    return query, key, torch.randn(*batch, KEYS, VALUE_DIM, dtype=dtype)


def assert_pooled(found, exact):
    exact = torch.tensor(exact)
    bounds.assert_close(found, exact, bounds.roundings(exact, 200))


def test_every_public_score_has_a_formula_here():
    assert {name.split()[0] for name in CASES} | {"Rotary"} == set(CLASSES)
    assert all(issubclass(kind, Score) for kind in CLASSES.values())
    assert set(NAMES) == {*oracle.PLAIN, *oracle.KERNELS}


@pytest.mark.parametrize("name", [name for name in CASES if name in CLASSES])
def test_score_passes_check_score(name):
    build, formula, query_dim, key_dim = CASES[name]
    score = build()
    failures = check_score(score, formula(score.double()), query_dim=query_dim, key_dim=key_dim)
    # Tiles of the additive score promise an error of their own beyond rounding; test_backends_agree allows for it. On a
    # GPU that of triton is as large; tests/backends/triton allow for it.
    tiled = ("blocked", "triton") if torch.get_default_device().type == "cuda" else "blocked"
    assert [line for line in failures if name != "Additive" or not line.startswith(tiled)] == []


@pytest.mark.parametrize("name", NAMES)
def test_name_means_its_score_with_bandwidth_1(name):
    query, key, value = tokens(NAMES[name])
    exact = oracle.pool(oracle.named(name), array(query), array(key), array(value))
    assert_pooled(attend(query, key, value, name), exact.output)
    record = regard.inspect(query, key, value, name)
    assert_pooled(record.weights(), exact.weights)
    assert_pooled(record.log_mass, exact.log_mass)


@pytest.mark.parametrize("name", LAYER_NAMES)
def test_name_is_accepted_by_a_multi_head_layer_and_every_parameter_has_a_gradient(name):
    layer = MultiHeadAttention(12, 3, score=name)
    layer(torch.randn(2, QUERIES, 12)).square().sum().backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", ["additive", "bilinear"])
def test_name_of_a_score_with_sizes_is_refused_by_attend(name):
    x = torch.randn(5, 4)
    with refuses("score", name, name.capitalize()):
        attend(x, x, x, name)


@pytest.mark.parametrize("score", ["nonsense", "", "Gaussian"])
def test_unknown_name_is_refused_with_all_names(score):
    x = torch.randn(5, 4)
    with refuses("score", repr(score), *NAMES):
        attend(x, x, x, score)
    with pytest.raises(RegardError):
        MultiHeadAttention(12, 3, score=score)


@pytest.mark.parametrize("score", [None, 3.5, scores.Gaussian, [scores.Dot()]], ids=str)
def test_object_that_is_no_score_is_refused(score):
    x = torch.randn(5, 4)
    with refuses("score", "callable"):
        attend(x, x, x, score)


# --- Batch axes and heads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_batch_axes_of_size_1_are_shared(name):
    build, formula, query_dim, key_dim = CASES[name]
    score = build().double()
    query = 0.5 * torch.randn(2, 1, QUERIES, query_dim, dtype=torch.float64)
    key = 0.5 * torch.randn(1, 3, KEYS, key_dim, dtype=torch.float64)
    value = torch.randn(1, 1, KEYS, VALUE_DIM, dtype=torch.float64)
    record = regard.inspect(query, key, value, score)
    exact = oracle.pool_batch(formula(score), array(query), array(key), array(value))
    assert record.output.shape == (2, 3, QUERIES, VALUE_DIM)
    assert_pooled(record.output, exact.output)
    assert_pooled(record.weights(), exact.weights)


PER_HEAD = {
    "Bilinear": (
        lambda: scores.Bilinear(3, 5, heads=2),
        lambda score: [lambda q, k, m=m: oracle.bilinear(q, k, m) for m in array(score.matrix)],
        3,
        5,
    ),
    "Additive": (
        lambda: scores.Additive.of_projected(4, 2),
        lambda score: [lambda q, k, w=w: oracle.additive(q, k, np.eye(4), np.eye(4), w) for w in array(score.weight)],
        4,
        4,
    ),
    **{
        name: (
            lambda name=name: CLASSES[name](torch.tensor([[1.5], [3.0]])),
            lambda score, name=name: [
                lambda q, k, h=h: oracle.log_kernel(next(n for n in NAMES if NAMES[n] == name), q, k, h)
                for h in array(score.bandwidth)
            ],
            4,
            4,
        )
        for name in KERNELS
    },
}


@pytest.mark.parametrize("name", PER_HEAD)
def test_parameters_of_each_head_belong_to_the_last_batch_axis(name):
    build, formula, query_dim, key_dim = PER_HEAD[name]
    score = build().double()
    query = 0.5 * torch.randn(3, 2, QUERIES, query_dim, dtype=torch.float64)
    key = 0.5 * torch.randn(3, 2, KEYS, key_dim, dtype=torch.float64)
    value = torch.randn(3, 2, KEYS, VALUE_DIM, dtype=torch.float64)
    exact = oracle.pool_batch(formula(score), array(query), array(key), array(value))
    assert_pooled(attend(query, key, value, score), exact.output)


@pytest.mark.parametrize("inner", ["scaled_dot", "gaussian", "laplacian"])
def test_rotary_turns_query_and_key_by_their_positions(inner):
    query, key, value = (torch.randn(n, 6, dtype=torch.float64) for n in (QUERIES, KEYS, KEYS))
    turned = [np.array([oracle.rotate(t, p) for p, t in enumerate(array(x))]) for x in (query, key)]
    exact = oracle.pool(oracle.named(inner), *turned, array(value))
    assert_pooled(attend(query, key, value, scores.Rotary(inner)), exact.output)


def test_sink_is_a_key_with_value_0_that_every_query_sees():
    score = scores.ScaledDot(sink=2).double()
    with torch.no_grad():
        score.sink.copy_(torch.tensor([-0.5, 1.5]))
    query, key, value = (torch.randn(3, 2, n, 4, dtype=torch.float64) for n in (QUERIES, KEYS, KEYS))
    arrays = (array(x) for x in (query, key, value))
    exact = oracle.pool_batch(oracle.scaled_dot, *arrays, sink=[-0.5, 1.5])
    record = regard.inspect(query, key, value, score)
    assert_pooled(record.output, exact.output)
    assert_pooled(record.weights(), exact.weights)


# --- Copies ----------------------------------------------------------------------------------------------------------

COPIED = {
    **{name: case[0] for name, case in CASES.items()},
    **{f"{name} learnable": lambda name=name: CLASSES[name](1.5, learnable=True) for name in LEARNABLE},
    "Rotary": lambda: scores.Rotary(scores.Gaussian(1.5, learnable=True)),
}


@pytest.mark.parametrize("copied_by", ["state_dict", "pickle", "deepcopy"])
@pytest.mark.parametrize("name", COPIED)
def test_copy_of_a_score_computes_the_same(name, copied_by):
    score = COPIED[name]()
    if copied_by == "state_dict":
        with torch.random.fork_rng():
            torch.manual_seed(1)
            restored = COPIED[name]()
        restored.load_state_dict(score.state_dict())
    else:
        restored = pickle.loads(pickle.dumps(score)) if copied_by == "pickle" else copy.deepcopy(score)
    call = tokens(name.removesuffix(" learnable") if name != "Rotary" else "Dot", dtype=torch.float32)
    assert torch.equal(attend(*call, restored), attend(*call, score))
    assert repr(restored) == repr(score)


# --- Gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1.5, [1.0, 2.0], [[2.0], [3.0]]], ids=["shared", "per dimension", "per head"])
@pytest.mark.parametrize("name", LEARNABLE)
def test_learnable_bandwidth_has_the_gradient_of_finite_differences(name, width):
    score = CLASSES[name](width, learnable=True).double()
    query = 0.3 * torch.randn(2, 3, 2, dtype=torch.float64)
    key = 0.3 * torch.randn(2, 5, 2, dtype=torch.float64)
    value = torch.randn(2, 5, 2, dtype=torch.float64)
    (parameter,) = score.parameters()

    def pooled(number):
        return torch.func.functional_call(Pooled(score), {"score.log_bandwidth": number}, (query, key, value))

    assert [name for name, _ in score.named_parameters()] == ["log_bandwidth"]
    assert torch.autograd.gradcheck(pooled, parameter.detach().clone().requires_grad_())


class Pooled(torch.nn.Module):
    """One call with the score as a submodule, whose parameters `functional_call` replaces."""

    def __init__(self, score):
        super().__init__()
        self.score = score

    def forward(self, query, key, value):
        record = regard.inspect(query, key, value, self.score)
        return record.output, record.log_mass


def test_boxcar_cannot_learn_its_bandwidth():
    with refuses("learnable", "Boxcar"):
        scores.Boxcar(1.0, learnable=True)


# --- Edges -----------------------------------------------------------------------------------------------------------


def test_boxcar_includes_its_edge():
    """d = bandwidth counts (eq. 5); the next number above does not."""
    query, key = torch.zeros(1, 1), torch.tensor([[1.5], [math.nextafter(1.5, 2)], [-1.5]], dtype=torch.float64)
    weights = regard.inspect(query.double(), key, key, scores.Boxcar(1.5)).weights()
    assert weights.tolist() == [[0.5, 0.0, 0.5]]


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in ("Gaussian", "Laplacian")])
def test_query_outside_the_support_of_every_key_gets_0(name):
    query, key = torch.tensor([[9.0], [0.2]]), torch.tensor([[0.0], [0.5], [9.0 - 2.0]])
    record = regard.inspect(query, key, torch.ones(3, 2), CLASSES[name](1.9))
    assert record.output[0].tolist() == [0.0, 0.0]
    assert record.log_mass[0] == -math.inf
    assert record.weights()[0].tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(record.output[1], torch.ones(2))


@pytest.mark.parametrize("name", CASES)
def test_nan_query_makes_its_own_row_nan_and_no_other(name):
    query, key, value = tokens(name, (2,))
    query[1, 3, 0] = math.nan
    output = attend(query, key, value, CASES[name][0]().double())
    rows = torch.zeros(2, QUERIES, dtype=torch.bool)
    rows[1, 3] = True
    assert torch.equal(output.isnan().all(-1), rows)
    assert torch.equal(output.isnan().any(-1), rows)


@pytest.mark.parametrize("name", CASES)
def test_nan_key_makes_every_row_of_its_batch_entry_nan(name):
    query, key, value = tokens(name, (2,))
    key[1, 3, 0] = math.nan
    output = attend(query, key, value, CASES[name][0]().double())
    assert output[0].isfinite().all()
    assert output[1].isnan().all()


@pytest.mark.parametrize("name", CASES)
def test_empty_axes_give_results_of_the_right_shape(name):
    score = CASES[name][0]()
    query, key, value = tokens(name, (2,), torch.float32)
    assert (attend(query, key[:, :0], value[:, :0], score) == 0).all()
    assert regard.inspect(query, key[:, :0], value[:, :0], score).weights().shape == (2, QUERIES, 0)
    assert attend(query[:, :0], key, value, score).shape == (2, 0, VALUE_DIM)
    assert attend(query[:0], key[:0], value[:0], score).shape == (0, QUERIES, VALUE_DIM)


@pytest.mark.parametrize("name", KERNELS)
def test_query_equal_to_a_key_has_finite_gradients(name):
    query = torch.tensor([[0.0], [0.5]], requires_grad=True)
    key = torch.tensor([[0.0], [0.5], [0.25]], requires_grad=True)
    attend(query, key, torch.randn(3, 2), CLASSES[name](1.0)).sum().backward()
    assert query.grad.isfinite().all()
    assert key.grad.isfinite().all()


# --- A user's own scores ---------------------------------------------------------------------------------------------


def test_callable_is_a_score_and_what_it_closes_over_gets_gradients():
    query, key, value = tokens("Dot")
    power = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    output = attend(query, key, value, lambda q, k: -power * torch.cdist(q, k, p=1))
    exact = oracle.pool(lambda q, k: -np.abs(q - k).sum(), array(query), array(key), array(value))
    assert_pooled(output, exact.output)
    output.square().sum().backward()
    assert power.grad.abs() > 0


def test_preparation_of_a_subclass_is_used_for_every_call():
    class Shifted(scores.ScaledDot):
        """A scaled dot product of keys moved by 1."""

        def prepare_key(self, key, first=0):
            return key + 1

    query, key, value = tokens("Dot")
    exact = oracle.pool(lambda q, k: oracle.scaled_dot(q, k + 1), array(query), array(key), array(value))
    assert_pooled(attend(query, key, value, Shifted()), exact.output)
    assert_pooled(regard.Attention(Shifted())(query, key, value), exact.output)


@pytest.mark.parametrize("name", COPIED)
def test_tokens_are_prepared_one_by_one(name):
    """A decoder prepares keys in pieces: a prepared key may depend on the key and its position only."""
    score = COPIED[name]().double()
    _, key, _ = tokens(name.removesuffix(" learnable") if name != "Rotary" else "Dot")
    in_pieces = torch.cat([score.prepare_key(key[:3]), score.prepare_key(key[3:], first=3)])
    bounds.assert_same(in_pieces, score.prepare_key(key))


# --- repr and refusals -----------------------------------------------------------------------------------------------

SHOWN = {
    "ScaledDot(0.7, softcap=1.5, sink=3)": (lambda: scores.ScaledDot(0.7, 1.5, 3), ("0.7", "1.5", "3")),
    "Cosine(3.5)": (lambda: scores.Cosine(3.5), ("3.5",)),
    "Bilinear(3, 11)": (lambda: scores.Bilinear(3, 11), ("3", "11")),
    "Additive(3, 11, 13)": (lambda: scores.Additive(3, 11, 13), ("3", "11", "13")),
    "Rotary": (lambda: scores.Rotary("laplacian", base=123.0), ("123.0", "Laplacian")),
    **{f"{name}(2.5)": (lambda name=name: CLASSES[name](2.5), ("2.5",)) for name in KERNELS},
}


@pytest.mark.parametrize("name", SHOWN)
def test_repr_shows_the_class_and_its_numbers(name):
    build, parts = SHOWN[name]
    shown = repr(build())
    assert shown.startswith(name.partition("(")[0] + "(")
    assert all(part in shown for part in parts), shown


def test_repr_says_whether_the_bandwidth_learns():
    assert repr(scores.Gaussian(2.0)) != repr(scores.Gaussian(2.0, learnable=True))


@pytest.mark.parametrize("name", [name for name in CASES if name.split()[0] not in ("Bilinear", "Additive")])
def test_query_and_key_of_different_sizes_are_refused(name):
    wrong = "query" if "per dimension" in name else "key"
    with refuses(wrong, "dim 5"):
        dims = (5, 4) if wrong == "query" else (4, 5)
        attend(torch.randn(5, dims[0]), torch.randn(7, dims[1]), torch.randn(7, 3), CASES[name][0]())


@pytest.mark.parametrize("name", ["Bilinear", "Additive"])
def test_tokens_of_another_size_than_the_parameters_are_refused(name):
    score = CASES[name][0]()
    with refuses("query", "dim 4", "dim 3"):
        attend(torch.randn(5, 4), torch.randn(7, 5), torch.randn(7, 3), score)
    with refuses("key", "dim 4", "dim 5"):
        attend(torch.randn(5, 3), torch.randn(7, 4), torch.randn(7, 3), score)


@pytest.mark.parametrize("bandwidth", [0, -1.0, math.nan, math.inf, "wide", [1.0, 0.0], [], None, True], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_bandwidth_that_is_not_positive_and_finite_is_refused(name, bandwidth):
    with refuses("bandwidth", "positive"):
        CLASSES[name](bandwidth)


@pytest.mark.parametrize("name", ["Bilinear", "Additive"])
def test_sizes_that_are_no_positive_whole_numbers_are_refused(name):
    for size in (0, -1, 2.5, "3", True):
        with pytest.raises(RegardError):
            CLASSES[name](size, *[3] * (2 if name == "Additive" else 1))


@pytest.mark.parametrize("dim", [3, 5])
def test_rotary_refuses_an_odd_size(dim):
    x = torch.randn(5, dim)
    with refuses("query", f"dim {dim}", "even"):
        attend(x, x, x, scores.Rotary())
