"""How many source files one call enters: what a reader has to open to follow it."""

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.translation.examples import make_batch, make_model
from tests.translation.models import random_model, save_model
from tests.translation.toy_trainings import make_corpus, make_recipe

import regard
from regard import Mask, MultiHeadAttention, attend, inspect
from regard.regression import NadarayaWatson
from regard.scores import Additive
from regard.translation import Trainer, train

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


def test_translate_enters_few_files_of_its_packages(tmp_path, capsys):
    """The files of `translation` and `cli`; the operator and the pictures have rows of their own."""
    from regard.cli.app import run

    folder = str(save_model(tmp_path / "model", random_model()))
    words = ["translate", folder, "ab cd", "--alignment", "svg", "--alignment-out", str(tmp_path / "look.svg")]
    entered = files_entered(lambda: run(words))
    own = {path for path in entered if path.startswith(("/translation/", "/cli/"))}
    assert len(own) <= 14, sorted(own)


def translation_calls(folder: Path) -> dict[str, Callable[[], object]]:
    """The calls of a translation model by name."""
    model, (source, lengths, previous, _) = make_model(dtype=torch.float32), make_batch()
    trainer, numbers = Trainer(make_recipe(epochs=9), make_corpus()), count()
    return {
        "model": lambda: model(source, lengths, previous),
        "updates of an epoch": lambda: list(trainer.updates()),
        "train": lambda: train(make_recipe(epochs=1), make_corpus(), folder / str(next(numbers))),
    }


@pytest.mark.parametrize(("name", "most"), [("model", 2), ("updates of an epoch", 6), ("train", 19)])
def test_training_enters_few_files_of_translation(name, most, tmp_path):
    entered = files_entered(translation_calls(tmp_path)[name])
    own = {path for path in entered if path.startswith("/translation/")}
    assert len(own) <= most, sorted(own)


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
