"""The checks of `regard.testing` accept what is right and reject what is wrong."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests import oracle
from tests.refuses import refuses
from torch import Tensor

import regard
from regard import Mask, testing
from regard.backends import reference
from regard.backends.choice import Backend
from regard.backends.problem import Problem
from regard.scores import Additive, Bilinear, Epanechnikov, Gaussian, ScaledDot, Score
from regard.scores.dot import Dot
from regard.scores.forms import AdditiveForm, DotForm
from regard.testing import CASES, check_backend, check_score, dispatch_log, limits

# Enough to see every fault: all masks, a bias, rows without keys, a score with parameters, four dtypes.
FEW_CASES = [case for case in CASES if case.name.startswith(("scaled_dot,", "gaussian,", "additive,"))]


def wrong(name, run):
    """A backend that computes the reference with one fault."""
    return Backend(name, lambda problem, log_mass: None, run)


def scaled(gradient):
    """The same numbers, whose gradients are multiplied."""
    return lambda x: x + (1 - gradient) * (x.detach() - x).nan_to_num(0.0)


def changed(output=lambda x: x, log_mass=lambda x: x):
    """The results of the reference with something done to them."""

    def run(problem):
        found = reference.run(problem)
        return output(found[0]), log_mass(found[1])

    return run


def of_form(change):
    """The reference for a form of which some tensors are changed, given as a dict."""
    return lambda problem: reference.run(problem._replace(form=problem.form._replace(**change(problem.form))))


def where(condition, fault):
    """The fault in problems that fulfil the condition, the reference elsewhere."""
    return lambda problem: (fault if condition(problem) else reference.run)(problem)


def hide(problem, hidden):
    """The problem without the pairs that are hidden."""
    bias = torch.zeros(1, 1, 1, problem.keys, dtype=problem.value.dtype) if problem.bias is None else problem.bias
    return problem._replace(bias=bias.masked_fill(hidden, -torch.inf))


def with_allowed(change):
    """The reference with another mask, computed from the boolean tensor of pairs that are allowed."""

    def run(problem):
        if problem.mask is None:
            return reference.run(problem)
        allowed = problem.mask.tile(slice(0, problem.queries), slice(0, problem.keys), problem.value.device)
        return reference.run(hide(problem._replace(mask=None), ~change(allowed)))

    return run


def without_last_key(problem):
    return reference.run(hide(problem, torch.arange(problem.keys) == problem.keys - 1))


def halves_merged_by_their_mean(problem):
    """Two tiles of keys, whose outputs are not weighted by their mass."""
    is_late = torch.arange(problem.keys) >= problem.keys // 2
    halves = [reference.run(hide(problem, hidden)) for hidden in (is_late, ~is_late)]
    return (halves[0][0] + halves[1][0]) / 2, torch.logaddexp(halves[0][1], halves[1][1])


def shared_keys_learn_from_one_head(problem):
    key = problem.form.key
    key = torch.cat([key, key.detach().expand(-1, problem.batch[1] - 1, -1, -1)], 1)
    return reference.run(problem._replace(form=problem.form._replace(key=key)))


def empty_row_is_the_mean(problem):
    output, log_mass = reference.run(problem)
    mean = problem.value.mean(-2, keepdim=True).expand_as(output)
    return torch.where(log_mass.isneginf().unsqueeze(-1), mean, output), log_mass


def empty_row_is_nan(problem):
    output, log_mass = reference.run(problem)
    return output.masked_fill(log_mass.isneginf().unsqueeze(-1), torch.nan), log_mass


def rounded_sums(problem):
    output, log_mass = reference.run(problem)
    return output.to(torch.bfloat16).to(output.dtype), log_mass


def is_causal(problem):
    return problem.bias is not None  # among the cases, those with a causal mask have a bias


class Fault(NamedTuple):
    """A wrong backend; every failure that is reported must have one of the phrases."""

    run: Callable[[Problem], tuple[Tensor, Tensor]]
    phrases: tuple[str, ...] = ("",)


FAULTS = {
    "the mask is ignored": Fault(lambda problem: reference.run(problem._replace(mask=None))),
    "the bias is ignored": Fault(lambda problem: reference.run(problem._replace(bias=None)), ("mask causal",)),
    "the last key is left out": Fault(without_last_key),
    "the last query gets the result of another": Fault(
        changed(output=lambda x: torch.cat([x[..., :-1, :], x[..., -2:-1, :]], -2))
    ),
    "all heads get the result of the first": Fault(changed(output=lambda x: x[:, :1].expand_as(x))),
    "all sequences get the mask of the first": Fault(
        with_allowed(lambda allowed: allowed[:1].expand_as(allowed) if allowed.ndim == 4 else allowed),
        ("mask lengths", "mask keep"),
    ),
    "tiles are merged without their mass": Fault(halves_merged_by_their_mean),
    "the scale of dot products is ignored": Fault(
        where(lambda problem: isinstance(problem.form, DotForm), of_form(lambda form: {"scale": 1.0})), ("scaled_dot",)
    ),
    "a causal mask allows one key too many": Fault(
        where(is_causal, with_allowed(lambda allowed: allowed | allowed.roll(1, -1))), ("mask causal",)
    ),
    "a causal mask allows one key too few": Fault(
        where(is_causal, with_allowed(lambda allowed: allowed & allowed.roll(-1, -1))), ("mask causal",)
    ),
    "the output is off by a thousandth": Fault(changed(output=lambda x: 1.001 * x)),
    "the output is off by a tenth in float16": Fault(
        where(lambda problem: problem.value.dtype == torch.float16, changed(output=lambda x: 1.1 * x)), ("float16",)
    ),
    "the log mass is off by a thousandth": Fault(changed(log_mass=lambda x: x + 1e-3), (": log_mass",)),
    "gradients are off by a hundredth": Fault(
        changed(output=scaled(1.01)), (": query", ": key", ": value", ": bias", "weight")
    ),
    "the log mass has no gradient": Fault(
        changed(log_mass=lambda x: x.detach() + 0 * x.nan_to_num(0, 0, 0)), (": query", ": key", ": bias", "weight")
    ),
    "the gradient of the log mass has the wrong sign": Fault(
        changed(log_mass=scaled(-1)), (": query", ": key", ": bias", "weight")
    ),
    "values have no gradient": Fault(
        lambda problem: reference.run(problem._replace(value=problem.value.detach())), (": value",)
    ),
    "a bias has no gradient": Fault(
        lambda problem: reference.run(problem._replace(bias=None if problem.bias is None else problem.bias.detach())),
        (": bias",),
    ),
    "one parameter of a score has no gradient": Fault(
        where(
            lambda problem: isinstance(problem.form, AdditiveForm),
            of_form(lambda form: {"weight": form.weight.detach()}),
        ),
        (": weight",),
    ),
    "keys get the gradient of one of the heads that share them": Fault(
        shared_keys_learn_from_one_head, (": key", ": key_weight")
    ),
    "queries get a wrong gradient in float64": Fault(
        where(
            lambda problem: problem.value.dtype == torch.float64,
            of_form(lambda form: {"query": scaled(1.01)(form.query)}),
        ),
        ("float64: query",),
    ),
    "queries get a wrong gradient under a causal mask": Fault(
        where(is_causal, of_form(lambda form: {"query": scaled(1.1)(form.query)})), ("mask causal",)
    ),
    "a row without keys gets the mean": Fault(empty_row_is_the_mean, ("mask lengths", "mask keep")),
    "a row without keys is NaN": Fault(empty_row_is_nan, ("mask lengths", "mask keep")),
    "a row without keys has log mass 0": Fault(
        changed(log_mass=lambda x: x.masked_fill(x.isneginf(), 0.0)), ("log_mass",)
    ),
    "sums are rounded to bfloat16": Fault(rounded_sums),
    "the output has another dtype": Fault(changed(output=lambda x: x.float())),
    "the log mass has another dtype": Fault(changed(log_mass=lambda x: x.double()), (": log_mass",)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_backend_is_rejected(fault):
    run, phrases = FAULTS[fault]
    failures = check_backend(wrong("wrong", run), FEW_CASES)
    assert failures != []
    assert [line for line in failures if not any(phrase in line for phrase in phrases)] == []


def test_the_reference_under_another_name_is_accepted():
    assert check_backend(wrong("copy", reference.run), FEW_CASES) == []


def test_a_new_backend_is_registered_during_the_check_only():
    check_backend(wrong("passing", reference.run), CASES[:1])
    with refuses("backend", "'passing'"):
        regard.attend(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2), backend="passing")


def test_a_backend_that_refuses_every_case_is_rejected():
    nothing = Backend("nothing", lambda problem, log_mass: "it computes nothing", reference.run)
    (complaint,) = check_backend(nothing, CASES[:3])
    assert "nothing runs none of the 3 cases" in complaint
    assert "it computes nothing" in complaint


def test_a_mistake_in_a_case_is_not_taken_for_a_refusal():
    bad = testing.Case("bad", lambda: testing.Inputs(*[torch.ones(2, 3)] * 2, torch.ones(5, 3), "gaussian"))
    with refuses("value", "5 rows for 2 keys"):
        check_backend("blocked", [bad])


def test_a_promised_error_is_allowed_beside_roundings():
    off = wrong("off", changed(output=lambda x: x + 1e-3))
    cases = [case for case in FEW_CASES if case.dtype == torch.float32]
    assert check_backend(off, cases) != []
    assert check_backend(off, cases, allowance=lambda case: {"output": 1.1e-3}) == []


# --- scores ----------------------------------------------------------------------------------------------------


class WrongGradient(torch.autograd.Function):
    """The identity, with a gradient that is too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 1.1 * grad


class LearnsWrongly(Dot):
    """Dot products whose queries get a wrong gradient."""

    def prepare_query(self, query, first=0):
        return WrongGradient.apply(query)


SOUND = {
    "scaled dot": (lambda: ScaledDot(), lambda score: oracle.scaled_dot, {}),
    "gaussian": (lambda: Gaussian(0.5), lambda score: lambda q, k: oracle.log_kernel("gaussian", q, k, 0.5), {}),
    "compact": (lambda: Epanechnikov(1.7), lambda score: lambda q, k: oracle.log_kernel("epanechnikov", q, k, 1.7), {}),
    "bilinear": (
        lambda: Bilinear(3, 4),
        lambda score: lambda q, k: oracle.bilinear(q, k, score.matrix.detach().double().numpy()),
        {"query_dim": 3, "key_dim": 4},
    ),
    "additive": (
        lambda: Additive(3, 4, 8),
        lambda score: lambda q, k: oracle.additive(q, k, *(p.detach().double().numpy() for p in score.parameters())),
        {"query_dim": 3, "key_dim": 4},
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_score_that_is_its_formula_is_accepted(name):
    make, formula, sizes = SOUND[name]
    score = make()
    complaints = check_score(score, formula(score), **sizes)
    # Additive tiles have a promised error of their own, beyond roundings; `tests/contracts` judge them by it.
    assert [line for line in complaints if name != "additive" or not line.startswith("blocked")] == []


def test_a_score_that_is_not_its_formula_is_rejected():
    complaints = check_score(Gaussian(0.5), lambda q, k: -float(((q - k) ** 2).sum()))
    assert any("against the formula" in line for line in complaints)


def test_a_score_with_wrong_gradients_is_rejected():
    complaints = check_score(LearnsWrongly(), oracle.dot)
    assert any("finite differences" in line for line in complaints)


def test_a_score_whose_state_is_not_saved_is_rejected():
    class Forgetful(Score):
        """Dot products times a tensor that is neither a parameter nor a buffer."""

        def __init__(self):
            super().__init__()
            self.factor = torch.ones((), dtype=torch.float64)

        def pair(self, query, key):
            return Dot().pair(self.factor.to(query) * query, key)

    complaints = check_score(Forgetful(), oracle.dot)
    assert any("state dict" in line for line in complaints)


# --- the log and the limits ------------------------------------------------------------------------------------


def tokens(queries=3, keys=4):
    return torch.randn(2, queries, 5), torch.randn(2, keys, 5), torch.randn(2, keys, 5)


@pytest.mark.parametrize("backend", ["reference", "blocked", "torch"])
def test_the_log_has_the_backend_that_was_asked_for(backend):
    with dispatch_log() as ran:
        regard.attend(*tokens(), backend=backend)
    assert ran == [backend]


def test_the_log_has_calls_that_go_straight_to_torch():
    layer, x = regard.MultiHeadAttention(8, 2).eval(), torch.randn(2, 5, 8)
    with dispatch_log() as ran, torch.no_grad():
        regard.attend(x, x, x)
        layer(x)
        layer(x, mask=Mask.causal())
    assert ran == ["torch"] * 3


def test_limits_end_with_their_block():
    call = (*tokens(), "gaussian")
    with limits(small_elements=0, few_queries=0):
        assert regard.why(*call).backend == "blocked"
    assert regard.why(*call).backend == "reference"


def test_small_tiles_compute_the_same():
    query, key, value = tokens(40, 150)
    whole = regard.attend(query, key, value, "laplacian", backend="reference")
    with limits(tile_pairs=1, kept_scores=0):
        assert torch.allclose(regard.attend(query, key, value, "laplacian", backend="blocked"), whole, atol=1e-6)


def test_an_unknown_limit_is_refused():
    with refuses("limits", "tile_size", "tile_pairs"), limits(tile_size=3):
        pass


def test_a_formula_may_be_given_as_numpy_arrays():
    score = ScaledDot()
    assert check_score(score, lambda q, k: q @ k / np.sqrt(len(q))) == []
