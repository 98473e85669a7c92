"""why tells what attend would do, what it promises, and what speaks against the others."""

import pytest
import torch
from tests.refuses import refuses

import regard
from regard.backends.blocked.additive import TANH_ERROR
from regard.backends.triton import additive
from regard.backends.triton.additive.lift import lift_of, smallest_rank
from regard.scores.additive import LOGISTIC_ERROR
from regard.testing import dispatch_log

TOKENS = torch.randn(2, 7, 4)
EPS = torch.finfo(torch.float32).eps


def test_it_prints_one_line_for_each_thing_it_knows():
    text = str(regard.why(TOKENS, TOKENS, TOKENS, "laplacian"))
    assert text.splitlines() == [
        "backend: reference",
        "  error of a score: the rounding of float32, the dtype of scores, softmax and sums",
        "  not torch: it computes dot products and Gaussian scores only",
        "  not triton: reference comes first for this call",
        "  not blocked: reference comes first for this call",
    ]


@pytest.mark.parametrize(
    ("backend", "units"),
    [("blocked", TANH_ERROR), ("reference", LOGISTIC_ERROR), ("triton", additive.EXACT_ERROR / EPS)],
)
def test_it_states_the_bound_of_an_additive_score_for_each_tanh_and_for_the_sum(backend, units):
    score = regard.scores.Additive(4, 4, 8)
    bound = regard.why(TOKENS, TOKENS, TOKENS, score, backend=backend).bound
    total = units * EPS * score.weight.abs().sum().item()
    assert bound == f"at most {units * EPS:.2g} for each tanh, {total:.2g} for the sum over hidden units"


@pytest.mark.parametrize("gradient", [False, True])
def test_it_states_rank_range_and_what_lies_beyond_where_tanh_is_lifted(monkeypatch, gradient):
    """For the kernels of a GPU, asked for by name, here those that Triton's interpreter would run."""
    monkeypatch.setattr(additive, "MIN_LIFT_WORK", 1)
    score = regard.scores.Additive.of_projected(4)
    score.reach.update(2.0, 2.0)
    query, key = 0.1 * torch.ones(128, 4), 0.1 * torch.ones(200, 4)
    query[3], key[:20, 1] = 2.5, -2.1
    with torch.set_grad_enabled(gradient):
        bound = regard.why(query, key, key, score, backend="triton", tolerance=2e-3).bound
    lift = lift_of(2.0, 2.0, smallest_rank(2.0, 2.0, 2e-3, gradient))
    each = max(lift.value_error, lift.slope_error) if gradient else lift.value_error
    assert each <= 2e-3
    total = each * score.weight.abs().sum().item()
    assert bound == (
        f"at most {each:.2g} for each tanh, {total:.2g} for the sum over hidden units; tanh as {lift.rank} products "
        "for each hidden unit in the range of queries up to 2, keys up to 2: 0.78% and 10.00% of the tokens have "
        "activations beyond it, corrected one by one"
    )


def test_padding_is_not_counted_among_what_lies_beyond(monkeypatch):
    monkeypatch.setattr(additive, "MIN_LIFT_WORK", 1)
    score = regard.scores.Additive.of_projected(4)
    score.reach.update(2.0, 2.0)
    query, key = 0.1 * torch.ones(1, 128, 4), 0.1 * torch.ones(1, 200, 4)
    key[:, 150:] = 1e6
    told = regard.why(
        query, key, key, score, regard.Mask.lengths(torch.tensor([150])), backend="triton", tolerance=2e-3
    )
    assert "0.00% and 0.00% of the tokens have activations beyond it" in told.bound


def test_a_tolerance_that_no_lift_keeps_is_answered_by_the_exact_bound():
    tokens, score = torch.randn(128, 4), regard.scores.Additive(4, 4, 8)
    bound = regard.why(tokens, tokens, tokens, score, backend="triton", tolerance=1e-5).bound
    assert bound.startswith(f"at most {additive.EXACT_ERROR:.2g} for each tanh")
    assert "products" not in bound


def test_a_sink_needs_log_mass_and_so_another_backend_than_torch():
    record = regard.why(TOKENS, TOKENS, TOKENS, regard.scores.ScaledDot(sink=2))
    assert record.backend == "reference"
    assert record.refusals["torch"] == "it does not return log_mass"


def test_it_pools_nothing():
    with dispatch_log() as ran:
        regard.why(TOKENS, TOKENS, TOKENS)
    assert ran == []


def test_it_refuses_what_attend_refuses():
    for backend in ("torch", "nowhere"):
        with refuses("backend"):
            regard.why(TOKENS, TOKENS, TOKENS, "laplacian", backend=backend)


def test_unknown_need_is_refused():
    with refuses("need", "'mass'", '"log_mass"'):
        regard.why(TOKENS, TOKENS, TOKENS, need="mass")
