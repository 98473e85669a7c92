"""How many source files one call enters: what a reader has to open to follow it."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard import Mask, MultiHeadAttention, attend, inspect
from regard.regression import NadarayaWatson
from regard.scores import Additive

PACKAGE = str(Path(regard.__file__).parent)


def files_entered(call: Callable[[], object]) -> set[str]:
    """The files of the library whose functions run in the second of two calls."""
    call()
    entered = set()

    def note(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE):
            entered.add(path.removeprefix(PACKAGE))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def calls() -> dict[str, Callable[[], object]]:
    """The calls by name."""
    tokens = torch.randn(2, 4, 32, 16)
    lengths, additive = Mask.lengths(torch.tensor([20, 32])), Additive(16, 16, 8)
    layer = MultiHeadAttention(16, 4).eval()
    additive_layer = MultiHeadAttention(16, 4, "additive").eval()
    sequence = torch.randn(2, 8, 16)
    memory = layer.remember(sequence)
    x = np.random.default_rng(0).uniform(0, 4, (500, 1))
    y = np.sin(x[:, 0]) + np.random.default_rng(1).normal(size=500)
    regression = NadarayaWatson("epanechnikov", "loo").fit(x, y)
    return {
        "scaled dot": lambda: attend(tokens, tokens, tokens),
        "lengths": lambda: attend(tokens, tokens, tokens, mask=lengths),
        "additive": lambda: attend(tokens, tokens, tokens, additive),
        "weights": lambda: inspect(tokens, tokens, tokens).weights(),
        "additive layer": lambda: additive_layer(sequence),
        "recall of one token": lambda: layer.recall(sequence[:, :1], memory),
        "leave-one-out fit": lambda: regression.fit(x, y),
        "prediction": lambda: regression.predict(x),
    }


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("scaled dot", 7),
        ("lengths", 9),
        ("additive", 8),
        ("weights", 9),
        ("additive layer", 10),
        ("recall of one token", 10),
        ("leave-one-out fit", 10),
        ("prediction", 8),
    ],
)
def test_call_enters_few_files(name, most):
    with torch.no_grad():
        entered = files_entered(calls()[name])
    assert len(entered) <= most, sorted(entered)
