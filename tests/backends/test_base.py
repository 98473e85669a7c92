"""The record that backends are given: sizes, the numbers that the textbook form holds, parts of a batch, bounds."""

import pytest
import torch
from tests import bounds
from tests.refuses import refuses

import regard
from regard.attention.prepare import Options, prepare
from regard.backends import reference
from regard.backends.base import Backend, Plan, Problem, Refusal
from regard.masks.bound import Lengths
from regard.scores.additive import AdditivePair
from regard.scores.base import CallablePair
from regard.scores.distance import DistancePair
from regard.scores.dot import DotPair
from regard.scores.kernels import KERNELS


def zeros(*shape):
    return torch.zeros(shape)


def test_sizes_are_those_of_query_and_value():
    problem = Problem(DotPair(zeros(2, 5, 3), zeros(2, 7, 3), 1.0), zeros(2, 7, 4))
    assert (problem.queries, problem.keys, problem.batch) == (5, 7, (2,))


def test_batch_is_the_broadcast_shape_of_all_tensors_and_parameters():
    pair = AdditivePair(zeros(2, 1, 1, 5, 3), zeros(1, 1, 1, 7, 3), zeros(1, 1, 11, 1, 3), (6.0, 6.0))
    assert Problem(pair, zeros(1, 13, 1, 7, 4)).batch == (2, 13, 11)


def test_parameter_with_other_batch_axes_is_refused():
    pair = DistancePair(zeros(2, 5, 3), zeros(2, 7, 3), zeros(3, 1, 1), KERNELS["gaussian"])
    with refuses("score", "batch", "axes"):
        _ = Problem(pair, zeros(2, 7, 4)).batch


@pytest.mark.parametrize(
    ("pair", "elements"),
    [
        (DotPair(zeros(2, 5, 3), zeros(2, 7, 3), 1.0), 2 * 5 * 7),
        (AdditivePair(zeros(2, 5, 3), zeros(2, 7, 3), zeros(1, 1, 3), (6.0, 6.0)), 2 * 5 * 7 * 3),
        (DistancePair(zeros(2, 5, 3), zeros(2, 7, 3), zeros(1, 1, 1), KERNELS["gaussian"]), 2 * 5 * 7 * 3),
        (CallablePair(zeros(2, 5, 3), zeros(2, 7, 3), torch.cdist), 2 * 5 * 7 * 3),
    ],
    ids=["dot", "additive", "distance", "callable"],
)
def test_elements_count_what_the_textbook_form_holds(pair, elements):
    assert Problem(pair, zeros(2, 7, 4)).elements == elements


@pytest.mark.parametrize(
    ("score", "bias", "uses_callable"),
    [
        ("dot", None, False),
        ("dot", zeros(5, 7), False),
        (torch.cdist, None, True),
        ("dot", lambda q, k: q[:, None] - k, True),
    ],
    ids=["dot", "bias", "callable score", "callable bias"],
)
def test_problem_knows_whether_it_uses_a_callable(score, bias, uses_callable):
    problem = prepare(zeros(2, 5, 3), zeros(2, 7, 3), zeros(2, 7, 4), score, Options(bias=bias))
    assert problem.uses_callable == uses_callable


@pytest.mark.parametrize("score", ["scaled_dot", "gaussian", regard.scores.Additive.of_projected(3, heads=3).double()])
@pytest.mark.parametrize("index", [(1, 2), (0, slice(1, 3)), (slice(None), 0)], ids=str)
def test_selected_batch_has_the_results_of_that_part(score, index):
    """Keys that the heads share and a mask without heads stay shared."""
    query, key, value = torch.randn(2, 3, 5, 3), torch.randn(2, 1, 7, 3), torch.randn(2, 3, 7, 4)
    mask = regard.Mask.lengths(torch.tensor([4, 6])) & regard.Mask.keep(torch.rand(3, 5, 7) < 0.7)
    options = Options(mask, torch.randn(2, 1, 1, 7).double())
    problem = prepare(query.double(), key.double(), value.double(), score, options)
    whole, part = reference.attention(problem), reference.attention(problem.select_batch(index))
    for selected, result in zip(part, whole, strict=True):
        bounds.assert_same(selected, result[index])


@pytest.mark.parametrize("garbage", [1e30, -1e30, 1e3, torch.inf, torch.nan])
def test_padding_is_zeroed_by_replacing_and_gets_no_gradient(garbage):
    real = (torch.arange(7) < torch.tensor([7, 4])[:, None]).unsqueeze(-1)
    tokens = torch.randn(2, 7, 3).masked_fill(~real, garbage).requires_grad_()
    padding = Lengths(torch.tensor([7, 4]).view(2, 1, 1)).padding(7, tokens.device)
    clean = padding.zero(tokens)
    assert torch.equal(clean, tokens.detach().where(real, 0.0))
    (gradient,) = torch.autograd.grad(clean.sum(), tokens)
    assert torch.equal(gradient, real.expand(2, 7, 3).float())


def test_backend_refuses_with_its_name():
    class Named(Backend):
        name = "named"

        def plan(self, problem, need):
            """Refuse weights."""
            return self.refuse("no weights") if need == "weights" else Plan(self.name, reference.attention)

    problem = prepare(zeros(5, 3), zeros(7, 3), zeros(7, 4), "dot", Options())
    assert Named().plan(problem, "weights") == Refusal("named", "no weights")
    plan = Named().plan(problem, "output")
    assert (plan.backend, plan.reads_padding) == ("named", True)


def test_default_error_bound_is_the_rounding_of_the_accumulation_dtype():
    for dtype, word in ((torch.bfloat16, "float32"), (torch.float64, "float64")):
        tokens = zeros(5, 3).to(dtype)
        problem = prepare(tokens, tokens, tokens, "gaussian", Options())
        assert f"the rounding of {word}" in reference.Reference().error_bound(problem)
    additive = prepare(zeros(5, 3), zeros(5, 3), zeros(5, 3), regard.scores.Additive(3, 3, 4), Options())
    assert "for each tanh" in reference.Reference().error_bound(additive)
