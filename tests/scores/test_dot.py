"""Dot products: plain, scaled, cosine, bilinear, capped, with a sink (eq. 7 to 11)."""

import math

import numpy as np
import pytest
import torch
from tests import bounds, oracle
from tests.contracts.agreement import DTYPES
from tests.refuses import refuses

import regard
from regard.scores import Bilinear, Cosine, Dot, ScaledDot

BACKENDS = ("reference", "blocked")


def drawn(*batch, queries=5, keys=7, dim=3, value_dim=2):
    shapes = (*batch, queries, dim), (*batch, keys, dim), (*batch, keys, value_dim)
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


def test_the_default_scale_is_one_over_the_root_of_the_dimension():
    query, key, _ = drawn(dim=16)
    assert ScaledDot().pair(query, key).scale == 0.25
    assert Dot().pair(query, key).scale == 1.0


def test_bilinear_is_scaled_by_the_dimension_of_the_keys():
    assert Bilinear(3, 16).scale == 0.25
    assert Bilinear(3, 16, scale=1.0).scale == 1.0


def test_bilinear_with_the_identity_is_the_scaled_dot_product():
    leaves = drawn(2, dim=3)
    score = Bilinear(3, 3).double()
    score.matrix.data.copy_(torch.eye(3))
    bounds.assert_same(regard.attend(*leaves, score), regard.attend(*leaves))


def test_bilinear_takes_queries_and_keys_of_different_sizes():
    output = regard.attend(torch.randn(5, 3), torch.randn(7, 11), torch.randn(7, 2), Bilinear(3, 11))
    assert output.shape == (5, 2)


def test_scores_of_unit_tokens_have_about_unit_variance_in_a_new_bilinear():
    query, key = torch.randn(500, 64), torch.randn(500, 32)
    scores = regard.inspect(query, key, key, Bilinear(64, 32)).scores()
    assert 0.5 < scores.std().item() < 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_cosine_does_not_change_with_the_length_of_a_vector(dtype):
    query, key, value = (x.detach().to(dtype) for x in drawn(2))
    largest = 1e4 if dtype == torch.float16 else 1e30
    plain = regard.attend(query, key, value, "cosine", backend="reference")
    for factor in (1 / largest, largest):
        longer = regard.attend(query * 2.0 ** round(math.log2(factor)), key, value, "cosine", backend="reference")
        assert longer.isfinite().all()
        if dtype != torch.float16 or factor > 1:
            bounds.assert_same(longer, plain)


def test_a_zero_vector_has_cosine_0_and_a_finite_gradient():
    query, key, value = drawn()
    query = torch.zeros_like(query).requires_grad_()
    output = regard.attend(query, key, value, "cosine")
    bounds.assert_same(output, value.mean(0).expand_as(output))
    gradient = torch.autograd.grad(output.sum(), query)[0]
    assert gradient.isfinite().all()


def test_the_norm_of_a_zero_vector_counts_as_1_in_the_gradient_of_a_cosine():
    query, key = torch.zeros(1, 2, requires_grad=True), torch.tensor([[3.0, 4.0]])
    score = Cosine(5.0)
    score.pair(score.prepare_query(query), score.prepare_key(key)).scores().backward()
    torch.testing.assert_close(query.grad, torch.tensor([[3.0, 4.0]]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_softcap_bends_scores_into_its_range(backend):
    query, key, value = drawn()
    scores = regard.inspect(100 * query, key, value, ScaledDot(softcap=2.0), backend=backend).scores()
    assert scores.abs().max() <= 2.0
    assert scores.abs().max() > 1.9


def test_a_large_softcap_changes_nothing():
    leaves = drawn(2)
    capped = regard.attend(*leaves, ScaledDot(softcap=1e9), backend="blocked")
    bounds.assert_close(capped, regard.attend(*leaves, backend="blocked"), 1e-9)


# --- Sinks -----------------------------------------------------------------------------------------------------


def with_sink(logits):
    score = ScaledDot(sink=len(logits)).double()
    score.sink.data.copy_(torch.tensor(logits))
    return score


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sink_is_a_key_of_value_0_that_everybody_sees(backend):
    query, key, value = drawn(2, 3)
    score = with_sink([-1.0, 0.0, 2.0])
    allowed = torch.rand(5, 7) < 0.5
    allowed[2] = False
    record = regard.inspect(query, key, value, score, regard.Mask.keep(allowed), backend=backend)
    arrays = (x.detach().numpy() for x in (query, key, value))
    right = oracle.pool_batch(oracle.scaled_dot, *arrays, allowed=allowed.numpy(), sink=[-1.0, 0.0, 2.0])
    for name, found in (("output", record.output), ("log_mass", record.log_mass), ("weights", record.weights())):
        exact = torch.from_numpy(getattr(right, name))
        bounds.assert_close(found, exact, bounds.roundings(exact, 64), name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_reach_the_sink(backend):
    query, key, value = drawn(1, 2, queries=2, keys=3)
    score = with_sink([0.3, -0.4])

    def pooled(query, key, value, sink):
        del sink
        record = regard.inspect(query, key, value, score, backend=backend)
        return record.output, record.log_mass

    assert torch.autograd.gradcheck(pooled, (query, key, value, score.sink), fast_mode=True)


def test_attend_and_inspect_agree_about_a_sink():
    leaves = drawn(2, 3)
    score = with_sink([-1.0, 0.0, 2.0])
    assert torch.equal(regard.attend(*leaves, score), regard.inspect(*leaves, score).output)


@pytest.mark.parametrize("batch", [(), (1,), (2,), (3, 2)])
def test_a_sink_for_other_heads_than_the_last_batch_axis_is_refused(batch):
    with refuses("score", "sink"):
        regard.attend(*drawn(*batch), with_sink([0.0, 0.0, 0.0]))


# --- What is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [math.nan, math.inf, 10**400, "1", True, torch.tensor(1.0)])
def test_a_scale_that_is_no_finite_number_is_refused(scale):
    for build in (lambda: ScaledDot(scale), lambda: Cosine(scale), lambda: Bilinear(2, 2, scale=scale)):
        with refuses("scale", "finite", "number"):
            build()


@pytest.mark.parametrize("softcap", [0, -1.0, math.inf, math.nan, 10**400])
def test_a_softcap_that_caps_nothing_is_refused(softcap):
    with refuses("softcap"):
        ScaledDot(softcap=softcap)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None, "3"])
def test_sizes_that_are_not_whole_and_positive_are_refused(size):
    with refuses("query_dim", "number", "whole"):
        Bilinear(size, 3)
    with refuses("key_dim"):
        Bilinear(3, size)
    if size is not None:
        with refuses("sink"):
            ScaledDot(sink=size)
        with refuses("heads"):
            Bilinear(3, 3, heads=size)


@pytest.mark.parametrize("score", [Dot(), ScaledDot(), Cosine()], ids=lambda s: type(s).__name__)
def test_queries_and_keys_of_different_width_are_refused_with_the_scores_that_take_them(score):
    with refuses("key", "dim 4"):
        regard.attend(torch.randn(5, 4), torch.randn(7, 3), torch.randn(7, 3), score)


def test_tokens_that_a_bilinear_was_not_built_for_are_refused():
    query, key = torch.randn(2, 5, 4), torch.randn(2, 7, 3)
    with refuses("query", "dim 4"):
        regard.attend(query, key, key, Bilinear(5, 3))
    with refuses("key", "dim 3", "dim 5"):
        regard.attend(query, key, key, Bilinear(4, 5))
    with refuses("query"):
        regard.attend(query.double(), key.double(), key.double(), Bilinear(4, 3))
    for tokens in ((query, key, key), (query[0], key[0], key[0])):
        with refuses("score"):
            regard.attend(*tokens, Bilinear(4, 3, heads=3))


def test_a_cosine_has_a_scale():
    with refuses("scale", "None"):
        Cosine(None)


def test_numbers_of_numpy_are_numbers():
    x = torch.randn(2, 5, 4)
    for own, plain in (
        (ScaledDot(np.float32(0.5), np.float64(2)), ScaledDot(0.5, 2.0)),
        (Cosine(np.float32(3)), Cosine(3)),
    ):
        assert torch.equal(regard.attend(x, x, x, own), regard.attend(x, x, x, plain))
    assert regard.scores.Gaussian(np.float32(2)).bandwidth == 2.0
