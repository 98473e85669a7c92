"""The Triton kernels refuse what they do not support, with a reason; auto uses them on a GPU only."""

import os
import subprocess
import sys

import pytest
import torch

import regard
from regard import Mask
from regard.backends import triton
from regard.scores import Additive


def reason(**settings):
    arguments = {"query": torch.randn(2, 5, 3), "key": torch.randn(2, 7, 3), "value": torch.randn(2, 7, 2)}
    arguments |= {name: settings.pop(name) for name in list(settings) if name in arguments}
    return regard.why(*arguments.values(), settings.pop("score", "gaussian"), **settings).refusals.get("triton", "")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"score": "dot"}, "distance scores and additive scores only"),
        ({"dropout": 0.5}, "does not support dropout for distance scores"),
        ({"bias": torch.randn(5, 7)}, "not a bias for each pair"),
        ({"bias": lambda q, k: -(q[:, None] - k).abs().float()}, "does not support a callable bias"),
        (
            {"mask": Mask.keep(torch.ones(5, 7, dtype=torch.bool))},
            "at most one excluded window, joined by &",
        ),
        (
            {"mask": Mask.causal(align="top_left") | Mask.lengths(torch.tensor([3, 4]))},
            "at most one excluded window, joined by &",
        ),
        ({"query": torch.randn(2, 0, 3)}, "an input is empty"),
        ({"query": torch.randn(2, 5, 129), "key": torch.randn(2, 7, 129)}, "up to 128 dimensions"),
    ],
)
def test_unsupported_distance_problem_is_refused(settings, expected):
    assert expected in reason(**settings)


ADDITIVE = Additive.of_projected(3)


@pytest.mark.parametrize(
    "settings",
    [
        {"dropout": 0.5},
        {"bias": torch.randn(5, 7)},
        {"mask": Mask.keep(torch.ones(5, 7, dtype=torch.bool))},
        {"mask": Mask.causal(align="top_left") | Mask.lengths(torch.tensor([3, 4]))},
        {"query": torch.randn(2, 5, 300), "key": torch.randn(2, 7, 300), "score": Additive.of_projected(300)},
    ],
)
def test_additive_scores_support_more(settings):
    assert reason(**{"score": ADDITIVE} | settings) == "reference comes first for this call"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tolerance": 1.8e-6}, "the error of its tanh is up to 1.9e-06"),
        ({"bias": lambda q, k: -(q[:, None] - k).abs().float()}, "does not support a callable bias"),
        ({"query": torch.randn(2, 0, 3)}, "an input is empty"),
        ({"dropout": 1.0}, "supports dropout below 1 only"),
    ],
)
def test_unsupported_additive_problem_is_refused(settings, expected):
    assert expected in reason(score=ADDITIVE, **settings)


def test_mask_that_is_too_large_to_materialise_is_refused(monkeypatch):
    dense, causal = Mask.keep(torch.ones(5, 7, dtype=torch.bool)), Mask.causal(align="top_left")
    monkeypatch.setattr(triton, "MAX_MASK_ENTRIES", 2 * 5 * 7 - 1)
    assert "may have 69 entries" in reason(score=ADDITIVE, mask=dense)
    assert "entries" not in reason(score=ADDITIVE, mask=causal)
    monkeypatch.setattr(triton, "MAX_MASK_ENTRIES", 2 * 5 * 7)
    assert "entries" not in reason(score=ADDITIVE, mask=dense)


def test_float64_is_refused():
    tokens = torch.randn(2, 5, 3, dtype=torch.float64)
    for score in ("gaussian", Additive.of_projected(3).double()):
        assert "float32" in regard.why(tokens, tokens, tokens, score).refusals["triton"]


def test_axes_shared_in_more_than_two_groups_are_supported():
    query, key = torch.randn(2, 3, 2, 5, 3), torch.randn(2, 1, 2, 7, 3)
    for score in ("gaussian", ADDITIVE):
        assert regard.why(query, key, torch.randn(2, 1, 2, 7, 2), score, backend="triton").backend == "triton"


def test_auto_never_uses_triton_on_a_cpu():
    tokens = torch.randn(2048, 3, device="cpu")
    for score in ("laplacian", Additive.of_projected(3).to("cpu")):
        assert regard.why(tokens, tokens, tokens, score).backend == "blocked"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="auto uses triton on a GPU")
def test_auto_uses_triton_on_a_gpu_unless_a_small_problem_needs_gradients():
    small, large = (torch.randn(2, tokens, 64, device="cuda") for tokens in (64, 2048))
    assert regard.why(small, small, small, "gaussian").backend == "triton"
    assert regard.why(small, small, small.clone().requires_grad_(), "gaussian").backend == "reference"
    assert regard.why(large, large, large, "gaussian").backend == "triton"
    assert regard.why(large, large, large, "gaussian", dropout=0.5).backend == "blocked"


def test_refusal_without_gpu_and_interpreter_says_what_is_needed():
    code = """
import torch, regard
tokens = torch.randn(5, 2)
print(regard.why(tokens, tokens, tokens, "gaussian").refusals["triton"])
"""
    without = os.environ | {"TRITON_INTERPRET": "0"}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=without)
    assert "run on a GPU" in told.stdout
