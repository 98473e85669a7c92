"""why tells what attend would do, what it promises, and what speaks against the others."""

import pytest
import torch
from tests.contracts.agreement import watched

import regard
from regard.backends.blocked.additive import TANH_ERROR

TOKENS = torch.randn(2, 7, 4)
EPS = torch.finfo(torch.float32).eps


def test_it_prints_one_line_for_each_thing_it_knows():
    text = str(regard.why(TOKENS, TOKENS, TOKENS, "gaussian"))
    assert text.splitlines() == [
        "backend: reference",
        "  error of a score: the rounding of float32, in which scores, softmax and sums are formed",
        "  not torch: it knows dot products only",
        "  not triton: reference is faster here, or was asked for",
        "  not blocked: reference is faster here, or was asked for",
    ]


@pytest.mark.parametrize(("backend", "units"), [("blocked", TANH_ERROR), ("reference", 1.0)])
def test_it_states_the_bound_of_an_additive_score_for_each_tanh_and_for_the_sum(backend, units):
    score = regard.scores.Additive(4, 4, 8)
    bound = regard.why(TOKENS, TOKENS, TOKENS, score, backend=backend).bound
    total = units * EPS * score.weight.abs().sum().item()
    assert bound == f"at most {units * EPS:.2g} for each tanh, {total:.2g} for the sum over hidden units"


def test_a_sink_needs_log_mass_and_so_another_backend_than_torch():
    record = regard.why(TOKENS, TOKENS, TOKENS, regard.scores.ScaledDot(sink=2))
    assert record.backend == "reference"
    assert record.refusals["torch"] == "it does not return log_mass"


def test_it_pools_nothing():
    with watched() as ran:
        regard.why(TOKENS, TOKENS, TOKENS)
    assert ran == []


def test_it_refuses_what_attend_refuses():
    for backend in ("torch", "nowhere"):
        with pytest.raises(regard.RegardError, match="backend: got"):
            regard.why(TOKENS, TOKENS, TOKENS, "gaussian", backend=backend)
