"""What the fused kernels do not do, they refuse with a reason; auto takes them on a GPU only."""

import os
import subprocess
import sys

import pytest
import torch

import regard
from regard import Mask
from regard.backends import fused
from regard.scores import Additive


def reason(**settings):
    arguments = {"query": torch.randn(2, 5, 3), "key": torch.randn(2, 7, 3), "value": torch.randn(2, 7, 2)}
    arguments |= {name: settings.pop(name) for name in list(settings) if name in arguments}
    return regard.why(*arguments.values(), settings.pop("score", "gaussian"), **settings).refusals.get("triton", "")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"score": "dot"}, "scores of distance and additive scores only"),
        ({"dropout": 0.5}, "no dropout for scores of distance"),
        ({"bias": torch.randn(5, 7)}, "one number for each key"),
        ({"bias": lambda q, k: -(q[:, None] - k).abs().float()}, "no callable bias"),
        ({"mask": Mask.keep(torch.ones(5, 7, dtype=torch.bool))}, "one band and one gap"),
        ({"mask": Mask.causal(align="top_left") | Mask.lengths(torch.tensor([3, 4]))}, "one band and one gap"),
        ({"query": torch.randn(2, 0, 3)}, "an input is empty"),
        ({"query": torch.randn(2, 5, 129), "key": torch.randn(2, 7, 129)}, "up to 128 dimensions"),
    ],
)
def test_what_it_refuses(settings, expected):
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
def test_an_additive_score_is_refused_less(settings):
    assert reason(**{"score": ADDITIVE} | settings) == "reference comes first for this call"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tolerance": 1.8e-6}, "its tanh is exact to 1.9e-06"),
        ({"bias": lambda q, k: -(q[:, None] - k).abs().float()}, "no callable bias"),
        ({"query": torch.randn(2, 0, 3)}, "an input is empty"),
        ({"dropout": 1.0}, "leaves nothing to divide by"),
    ],
)
def test_what_it_refuses_of_an_additive_score(settings, expected):
    assert expected in reason(score=ADDITIVE, **settings)


def test_a_matrix_of_a_mask_that_is_too_large_to_lay_out(monkeypatch):
    kept, causal = Mask.keep(torch.ones(5, 7, dtype=torch.bool)), Mask.causal(align="top_left")
    monkeypatch.setattr(fused, "MAX_MASK_ENTRIES", 2 * 5 * 7 - 1)
    assert "may have 69 entries" in reason(score=ADDITIVE, mask=kept)
    assert "entries" not in reason(score=ADDITIVE, mask=causal)
    monkeypatch.setattr(fused, "MAX_MASK_ENTRIES", 2 * 5 * 7)
    assert "entries" not in reason(score=ADDITIVE, mask=kept)


def test_float64_is_left_to_others():
    tokens = torch.randn(2, 5, 3, dtype=torch.float64)
    for score in ("gaussian", Additive.of_projected(3).double()):
        assert "float32" in regard.why(tokens, tokens, tokens, score).refusals["triton"]


def test_axes_shared_in_three_groups():
    query, key = torch.randn(2, 3, 2, 5, 3), torch.randn(2, 1, 2, 7, 3)
    for score in ("gaussian", ADDITIVE):
        assert "alternating groups" in regard.why(query, key, torch.randn(2, 1, 2, 7, 2), score).refusals["triton"]


def test_auto_never_takes_it_on_a_cpu():
    tokens = torch.randn(2048, 3, device="cpu")
    for score in ("gaussian", Additive.of_projected(3).to("cpu")):
        assert regard.why(tokens, tokens, tokens, score).backend == "blocked"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="auto takes triton on a GPU")
def test_auto_takes_it_on_a_gpu_unless_it_is_small():
    small, large = (torch.randn(2, tokens, 64, device="cuda") for tokens in (64, 2048))
    assert regard.why(small, small, small, "gaussian").backend == "reference"
    assert regard.why(large, large, large, "gaussian").backend == "triton"
    assert regard.why(large, large, large, "gaussian", dropout=0.5).backend == "blocked"


def test_without_a_gpu_or_an_interpreter_it_says_so():
    code = """
import torch, regard
tokens = torch.randn(5, 2)
print(regard.why(tokens, tokens, tokens, "gaussian").refusals["triton"])
"""
    without = os.environ | {"TRITON_INTERPRET": "0"}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=without)
    assert "run on a GPU" in told.stdout
