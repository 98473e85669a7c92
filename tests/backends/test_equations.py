"""The equations for some of the queries are those rows of the equations for all of them."""

import pytest
import torch
from tests import bounds
from tests.contracts.agreement import Case, build
from tests.contracts.cases import MASKS, SCORES

from regard.backends import equations
from regard.pooling.prepare import Settings, prepare


def problem_of(name, mask="keep"):
    call = build(Case(name, mask, torch.float64, 5, 7), torch.float64)
    settings = Settings(mask=call.mask, bias=call.bias)
    return prepare(call.query, call.key, call.value, call.score, settings)[0]


@pytest.mark.parametrize("rows", [slice(1, 4), torch.tensor([4, 0, 0])], ids=["slice", "positions"])
@pytest.mark.parametrize("mask", MASKS)
def test_scores_of_rows_are_rows_of_scores(mask, rows):
    problem = problem_of("gaussian", mask)
    bounds.assert_same(equations.scores(problem, rows), equations.scores(problem)[..., rows, :])


@pytest.mark.parametrize("name", SCORES)
def test_pooling_of_rows_is_rows_of_pooling(name):
    problem = problem_of(name)
    whole, part = equations.pool(problem), equations.pool(problem, slice(2, 5))
    bounds.assert_same(part[0], whole[0][..., 2:5, :])
    bounds.assert_same(part[1], whole[1][..., 2:5])


def test_a_width_of_its_own_for_every_query_is_picked_with_the_rows():
    problem = problem_of("gaussian", "none")
    widths = torch.rand(1, 1, 5, 1, dtype=torch.float64) + 0.5
    problem = problem._replace(form=problem.form._replace(width=widths))
    rows = torch.tensor([3, 1])
    bounds.assert_same(equations.scores(problem, rows), equations.scores(problem)[..., rows, :])


def test_softmax_of_no_keys_has_no_weights_and_no_mass():
    weights, log_mass = equations.softmax(torch.zeros(2, 3, 0))
    assert weights.shape == (2, 3, 0)
    assert (log_mass == -torch.inf).all()


def test_softmax_of_huge_scores_does_not_overflow():
    weights, log_mass = equations.softmax(torch.tensor([[1e4, 1e4 - 1], [-1e4, -1e4 - 1]]))
    assert weights.isfinite().all()
    bounds.assert_same(weights[0], weights[1])
    bounds.assert_same(log_mass, torch.tensor([1e4, -1e4]) + torch.tensor(1 + torch.e**-1.0).log())


def test_nan_scores_are_not_hidden():
    weights, log_mass = equations.softmax(torch.tensor([[float("nan"), 0.0]]))
    assert weights.isnan().all()
    assert log_mass.isnan().all()
