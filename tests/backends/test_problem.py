"""The record that backends are given: its sizes, and how much work the textbook form would be."""

import pytest
import torch
from tests.refuses import refuses

from regard.backends.problem import FEW_NUMBERS, Problem
from regard.masks.placed import Dense, Lengths
from regard.scores.forms import AdditiveForm, CallableForm, DistanceForm, DotForm
from regard.scores.links import LINKS


def zeros(*shape):
    return torch.zeros(shape)


def test_sizes_are_read_off_query_and_value():
    problem = Problem(DotForm(zeros(2, 5, 3), zeros(2, 7, 3), 1.0), zeros(2, 7, 4))
    assert (problem.queries, problem.keys, problem.batch) == (5, 7, (2,))


def test_the_batch_is_what_all_tensors_broadcast_to_parameters_included():
    form = AdditiveForm(zeros(2, 1, 1, 5, 3), zeros(1, 1, 1, 7, 3), zeros(1, 1, 11, 1, 3), (6.0, 6.0))
    assert Problem(form, zeros(1, 13, 1, 7, 4)).batch == (2, 13, 11)


def test_a_parameter_that_does_not_fit_is_refused():
    form = DistanceForm(zeros(2, 5, 3), zeros(2, 7, 3), zeros(3, 1, 1), LINKS["gaussian"])
    with refuses("score", "batch", "axes"):
        _ = Problem(form, zeros(2, 7, 4)).batch


@pytest.mark.parametrize(
    ("form", "work"),
    [
        (DotForm(zeros(2, 5, 3), zeros(2, 7, 3), 1.0), 2 * 5 * 7),
        (AdditiveForm(zeros(2, 5, 3), zeros(2, 7, 3), zeros(1, 1, 3), (6.0, 6.0)), 2 * 5 * 7 * 3),
        (DistanceForm(zeros(2, 5, 3), zeros(2, 7, 3), zeros(1, 1, 1), LINKS["gaussian"]), 2 * 5 * 7 * 3),
        (CallableForm(zeros(2, 5, 3), zeros(2, 7, 3), torch.cdist), 2 * 5 * 7 * 3),
    ],
    ids=["dot", "additive", "distance", "callable"],
)
def test_work_counts_what_the_textbook_form_would_hold(form, work):
    assert Problem(form, zeros(2, 7, 4)).work == work


def padded(garbage, dim=FEW_NUMBERS, differentiated=True):
    key, value = torch.randn(2, 7, dim), torch.randn(2, 7, 4)
    key[1, 4:] = value[1, 4:] = garbage
    mask = Lengths(torch.tensor([7, 4])[:, None, None])
    query = torch.randn(2, 5, dim, requires_grad=differentiated)
    return Problem(DotForm(query, key, 0.5), value, mask)


@pytest.mark.parametrize("differentiated", [True, False])
def test_padding_that_cannot_overflow_is_left_as_it_is(differentiated):
    problem = padded(1e3, differentiated=differentiated)
    clean = problem.without_padding()
    assert clean.form.key is problem.form.key
    assert clean.value is problem.value


def test_where_nothing_is_padding_nothing_is_looked_at():
    problem = padded(1e30)._replace(mask=Lengths(torch.tensor([7, 7])[:, None, None]))
    clean = problem.without_padding()
    assert clean.form.key is problem.form.key
    assert clean.value is problem.value


@pytest.mark.parametrize("garbage", [1e30, -1e30])
def test_padding_that_could_overflow_is_blanked(garbage):
    clean = padded(garbage).without_padding()
    assert (clean.form.key[1, 4:] == 0).all()
    assert (clean.value[1, 4:] == 0).all()
    assert (clean.form.key[0] != 0).all()


def test_little_padding_is_blanked_without_a_look():
    clean = padded(1e3, dim=3).without_padding()
    assert (clean.form.key[1, 4:] == 0).all()
    assert (clean.value[1, 4:] == 0).all()


@pytest.mark.parametrize("dim", [3, FEW_NUMBERS])
def test_values_of_padding_are_blanked_only_where_a_gradient_could_meet_them(dim):
    clean = padded(1e30, dim, differentiated=False).without_padding()
    assert (clean.form.key[1, 4:] == 0).all()
    assert (clean.value[1, 4:] == 1e30).all()


@pytest.mark.parametrize("of", ["query", "bias", "a callable", "a callable bias", "torch.func"])
def test_whose_gradient_could_meet_padding(of):
    query, key, value, bias = torch.randn(2, 5, 3), torch.randn(2, 7, 3), torch.randn(2, 7, 4), torch.zeros(1, 1, 7)
    mask = Lengths(torch.tensor([7, 4])[:, None, None])
    problem = Problem(DotForm(query, key, 0.5), value, mask)
    assert problem.without_padding().value is value
    match of:
        case "query":
            problem = problem._replace(form=DotForm(query.requires_grad_(), key, 0.5))
        case "bias":
            problem = problem._replace(bias=bias.requires_grad_())
        case "a callable":
            problem = problem._replace(form=CallableForm(query, key, torch.cdist))
        case "a callable bias":
            problem = problem._replace(bias=lambda queries, keys: queries[:, None] - keys)
        case "torch.func":
            found = []
            torch.func.grad(lambda q: found.append(problem.without_padding().value) or q.sum())(query)
            assert (found[0][1, 4:] == 0).all()
            return
    assert (problem.without_padding().value[1, 4:] == 0).all()
    with torch.no_grad():
        assert problem.without_padding().value is value


@pytest.mark.parametrize("keys", [0, 3])
@pytest.mark.parametrize("allowed", [True, False])
def test_a_mask_that_is_the_same_everywhere_blanks_all_or_nothing(allowed, keys):
    tokens = [torch.randn(1, 2, 1, keys, 4) for _ in range(3)]
    problem = Problem(DotForm(*tokens[:2], 0.5), tokens[2], Dense(torch.full((1, keys), allowed)))
    clean = problem.without_padding()
    assert torch.equal(clean.form.key, tokens[1] if allowed else torch.zeros_like(tokens[1]))
