"""The checks of `regard.testing` accept what is right and reject what is wrong."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests import oracle
from tests.refuses import refuses

import regard
from regard import Mask, testing
from regard.backends import dispatch
from regard.backends.base import Backend, Plan, Problem, Result
from regard.backends.reference import attention
from regard.layers import native
from regard.scores import Additive, Bilinear, Epanechnikov, Gaussian, ScaledDot, Score
from regard.scores.additive import AdditivePair
from regard.scores.dot import Dot, DotPair
from regard.testing import CASES, check_backend, check_score, dispatch_log, limits

# Enough to see every fault: all masks, a bias, rows without keys, a score with parameters, four dtypes.
FEW_CASES = [case for case in CASES if case.name.startswith(("scaled_dot,", "gaussian,", "additive,"))]


class Computed(Backend):
    """A backend that runs every problem by one function."""

    def __init__(self, name, run):
        self.name = name
        self._run = run

    def plan(self, problem, need):
        return Plan(self.name, self._run)


class Refusing(Backend):
    """A backend that refuses every problem."""

    name = "refusing"

    def plan(self, problem, need):
        return self.refuse("it computes nothing")


class OutputOnly(Computed):
    """A backend that computes no log mass."""

    def plan(self, problem, need):
        return super().plan(problem, need) if need == "output" else self.refuse("it does not return log_mass")


def scaled(gradient):
    """A function that returns its argument and multiplies its gradient."""
    return lambda x: x + (1 - gradient) * (x.detach() - x).nan_to_num(0.0)


def changed(output=lambda x: x, log_mass=lambda x: x):
    """The reference with changed results."""

    def run(problem):
        result = attention(problem)
        return Result(output(result.output), log_mass(result.log_mass))

    return run


def of_pair(change):
    """The reference for a pair score with some changed fields; `change` returns them as a dict."""
    return lambda problem: attention(problem._replace(pair=replace(problem.pair, **change(problem.pair))))


def where(condition, fault):
    """The fault in problems that fulfil the condition, the reference elsewhere."""
    return lambda problem: (fault if condition(problem) else attention)(problem)


def hide(problem, hidden):
    """The problem without the hidden pairs."""
    bias = torch.zeros(1, 1, 1, problem.keys, dtype=problem.value.dtype) if problem.bias is None else problem.bias
    return problem._replace(bias=bias.masked_fill(hidden, -torch.inf))


def with_allowed(change):
    """The reference with another mask, computed from the boolean tensor of allowed pairs."""

    def run(problem):
        if problem.mask is None:
            return attention(problem)
        allowed = problem.mask.tile(slice(0, problem.queries), slice(0, problem.keys), problem.value.device)
        return attention(hide(problem._replace(mask=None), ~change(allowed)))

    return run


def without_last_key(problem):
    return attention(hide(problem, torch.arange(problem.keys) == problem.keys - 1))


def mean_of_two_tiles(problem):
    """Two tiles of keys whose outputs are not weighted by their mass."""
    is_late = torch.arange(problem.keys) >= problem.keys // 2
    left, right = (attention(hide(problem, hidden)) for hidden in (is_late, ~is_late))
    return Result((left.output + right.output) / 2, torch.logaddexp(left.log_mass, right.log_mass))


def shared_keys_get_gradient_of_one_head(problem):
    key = problem.pair.key
    key = torch.cat([key, key.detach().expand(-1, problem.batch[1] - 1, -1, -1)], 1)
    return attention(problem._replace(pair=replace(problem.pair, key=key)))


def empty_row_is_the_mean(problem):
    output, log_mass, _ = attention(problem)
    mean = problem.value.mean(-2, keepdim=True).expand_as(output)
    return Result(torch.where(log_mass.isneginf().unsqueeze(-1), mean, output), log_mass)


def empty_row_is_nan(problem):
    output, log_mass, _ = attention(problem)
    return Result(output.masked_fill(log_mass.isneginf().unsqueeze(-1), torch.nan), log_mass)


def is_causal(problem):
    return problem.bias is not None  # among the cases, those with a causal mask have a bias


class Fault(NamedTuple):
    """A wrong backend; every failure that is reported must have one of the phrases."""

    run: Callable[[Problem], Result]
    phrases: tuple[str, ...] = ("",)


FAULTS = {
    "the mask is ignored": Fault(lambda problem: attention(problem._replace(mask=None))),
    "the bias is ignored": Fault(lambda problem: attention(problem._replace(bias=None)), ("mask causal",)),
    "the last key is left out": Fault(without_last_key),
    "the last query gets the result of another": Fault(
        changed(output=lambda x: torch.cat([x[..., :-1, :], x[..., -2:-1, :]], -2))
    ),
    "all heads get the result of the first": Fault(changed(output=lambda x: x[:, :1].expand_as(x))),
    "all sequences get the mask of the first": Fault(
        with_allowed(lambda allowed: allowed[:1].expand_as(allowed) if allowed.ndim == 4 else allowed),
        ("mask lengths", "mask keep"),
    ),
    "tiles are merged without their mass": Fault(mean_of_two_tiles),
    "the scale of dot products is ignored": Fault(
        where(lambda problem: isinstance(problem.pair, DotPair), of_pair(lambda pair: {"scale": 1.0})), ("scaled_dot",)
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
        lambda problem: attention(problem._replace(value=problem.value.detach())), (": value",)
    ),
    "a bias has no gradient": Fault(
        lambda problem: attention(problem._replace(bias=None if problem.bias is None else problem.bias.detach())),
        (": bias",),
    ),
    "one parameter of a score has no gradient": Fault(
        where(
            lambda problem: isinstance(problem.pair, AdditivePair),
            of_pair(lambda pair: {"weight": pair.weight.detach()}),
        ),
        (": weight",),
    ),
    "keys get the gradient of one of the heads that share them": Fault(
        shared_keys_get_gradient_of_one_head, (": key", ": key_weight")
    ),
    "queries get a wrong gradient in float64": Fault(
        where(
            lambda problem: problem.value.dtype == torch.float64,
            of_pair(lambda pair: {"query": scaled(1.01)(pair.query)}),
        ),
        ("float64: query",),
    ),
    "queries get a wrong gradient under a causal mask": Fault(
        where(is_causal, of_pair(lambda pair: {"query": scaled(1.1)(pair.query)})), ("mask causal",)
    ),
    "a row without keys gets the mean": Fault(empty_row_is_the_mean, ("mask lengths", "mask keep")),
    "a row without keys is NaN": Fault(empty_row_is_nan, ("mask lengths", "mask keep")),
    "a row without keys has log mass 0": Fault(
        changed(log_mass=lambda x: x.masked_fill(x.isneginf(), 0.0)), ("log_mass",)
    ),
    "sums are rounded to bfloat16": Fault(changed(output=lambda x: x.to(torch.bfloat16).to(x.dtype))),
    "the output has another dtype": Fault(changed(output=lambda x: x.float())),
    "the log mass has another dtype": Fault(changed(log_mass=lambda x: x.double()), (": log_mass",)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_backend_is_rejected_only_for_its_fault(fault):
    run, phrases = FAULTS[fault]
    failures = check_backend(Computed("wrong", run), FEW_CASES)
    assert failures != []
    assert [line for line in failures if not any(phrase in line for phrase in phrases)] == []


def test_reference_under_another_name_is_accepted():
    assert check_backend(Computed("copy", attention), FEW_CASES) == []


def test_backend_without_log_mass_is_compared_by_its_output_and_gradients():
    cases = FEW_CASES[:16]  # every mask and dtype
    assert check_backend(OutputOnly("output only", attention), cases) == []
    failures = check_backend(OutputOnly("output only", changed(output=scaled(1.01))), cases)
    assert {line.split(": ")[1] for line in failures} == {"query", "key", "value"}


def test_new_backend_is_registered_during_the_check_only():
    check_backend(Computed("passing", attention), CASES[:1])
    assert "passing" not in dispatch.BACKENDS
    with refuses("backend", "'passing'"):
        regard.attend(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2), backend="passing")


def test_backend_that_refuses_every_case_is_rejected():
    (failure,) = check_backend(Refusing(), CASES[:3])
    assert "refusing runs none of the 3 cases" in failure
    assert "it computes nothing" in failure


def test_mistake_in_a_case_is_not_taken_for_a_refusal():
    bad = testing.Case("bad", lambda: testing.Inputs(*[torch.ones(2, 3)] * 2, torch.ones(5, 3), "gaussian"))
    with refuses("value", "5 rows for 2 keys"):
        check_backend("blocked", [bad])


def test_promised_error_is_allowed_beside_roundings():
    off = Computed("off", changed(output=lambda x: x + 1e-3))
    cases = [case for case in FEW_CASES if case.dtype == torch.float32]
    assert check_backend(off, cases) != []
    assert check_backend(off, cases, allowance=lambda case: {"output": 1.1e-3}) == []


# --- Scores ----------------------------------------------------------------------------------------------------


class WrongGradient(torch.autograd.Function):
    """The identity, with a gradient that is too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 1.1 * grad


class DotWithWrongGradient(Dot):
    """Dot products whose queries get a wrong gradient."""

    def prepare_query(self, query, first=0):
        return WrongGradient.apply(query)


CORRECT = {
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


@pytest.mark.parametrize("name", CORRECT)
def test_score_that_equals_its_formula_is_accepted(name):
    make, formula, sizes = CORRECT[name]
    score = make()
    failures = check_score(score, formula(score), **sizes)
    # Tiles of an additive score have a promised error beyond roundings, which tests/contracts take into account.
    assert [line for line in failures if name != "additive" or not line.startswith("blocked")] == []


def test_score_that_differs_from_its_formula_is_rejected():
    failures = check_score(Gaussian(0.5), lambda q, k: -float(((q - k) ** 2).sum()))
    assert any("against the formula" in line for line in failures)


def test_score_with_wrong_gradients_is_rejected():
    failures = check_score(DotWithWrongGradient(), oracle.dot)
    assert any("finite differences" in line for line in failures)


def test_score_whose_state_is_not_saved_is_rejected():
    class DotWithUnsavedFactor(Score):
        """Dot products times a tensor that is neither a parameter nor a buffer."""

        def __init__(self):
            super().__init__()
            self.factor = torch.ones((), dtype=torch.float64)

        def pair(self, query, key):
            return Dot().pair(self.factor.to(query) * query, key)

    failures = check_score(DotWithUnsavedFactor(), oracle.dot)
    assert any("state dict" in line for line in failures)


# --- The log and the limits ------------------------------------------------------------------------------------


def tokens(queries=3, keys=4):
    return torch.randn(2, queries, 5), torch.randn(2, keys, 5), torch.randn(2, keys, 5)


@pytest.mark.parametrize("backend", ["reference", "blocked", "torch"])
def test_log_has_the_backend_that_was_named(backend):
    with dispatch_log() as ran:
        regard.attend(*tokens(), backend=backend)
    assert ran == [backend]


def test_log_has_calls_of_attend_inspect_and_layers():
    layer, x = regard.MultiHeadAttention(8, 2).eval(), torch.randn(2, 5, 8)
    with dispatch_log() as ran, torch.no_grad():
        regard.attend(x, x, x)
        regard.inspect(x, x, x)
        layer(x, mask=Mask.causal())
        layer.recall_with_weights(x[:, :1], layer.remember(x))
    assert ran == ["torch", "reference", "torch", "reference"]


@pytest.mark.parametrize("is_native", [False, True])
def test_log_has_layer_calls_without_a_mask(is_native, monkeypatch):
    layer, x = regard.MultiHeadAttention(8, 2).eval(), torch.randn(2, 5, 8)
    monkeypatch.setattr(native, "DEVICE", x.device.type if is_native else "none")
    with dispatch_log() as ran, torch.no_grad():
        layer(x)
    assert ran == ["torch"]


def test_limits_end_with_their_block():
    call = (*tokens(), "laplacian")
    with limits(small_elements=0, few_queries=0):
        assert regard.why(*call).backend == "blocked"
    assert regard.why(*call).backend == "reference"


def test_every_limit_is_restored_after_its_block():
    def current():
        return {name: copy.copy(getattr(owner, constant)) for name, (owner, constant) in testing._LIMITS.items()}

    before = current()
    with limits(**dict.fromkeys(before, 7)):
        inside = current()
    assert current() == before
    assert all(inside[name] != before[name] for name in before)


def test_small_tiles_compute_the_same():
    query, key, value = tokens(40, 150)
    whole = regard.attend(query, key, value, "laplacian", backend="reference")
    with limits(tile_pairs=1, kept_scores=0):
        assert torch.allclose(regard.attend(query, key, value, "laplacian", backend="blocked"), whole, atol=1e-6)


def test_unknown_limit_is_refused():
    with refuses("limits", "tile_size", "tile_pairs"), limits(tile_size=3):
        pass


def test_formula_may_use_numpy_operations():
    score = ScaledDot()
    assert check_score(score, lambda q, k: q @ k / np.sqrt(len(q))) == []
