"""A corpus of a few words and a recipe of a few numbers: a training that takes a second."""

import random

from regard.translation.dataset import Corpus, Pair
from regard.translation.model import Architecture
from regard.translation.recipe import Data, Recipe, Training

WORDS = ("zero", "one", "two", "three", "four", "five")


def make_pairs(count, seed=0, longest=4):
    draw = random.Random(seed)
    drawn = [draw.choices(range(len(WORDS)), k=draw.randint(1, longest)) for _ in range(count)]
    return tuple(Pair(" ".join(WORDS[i] for i in row), " ".join(map(str, row))) for row in drawn)


def make_corpus(train=40, valid=6, seed=0):
    return Corpus("toy", make_pairs(train, seed), make_pairs(valid, seed + 1))


def make_recipe(**flags):
    """Two epochs of a model with 8 numbers in its state; `flags` change it."""
    return Recipe(
        Architecture(embedding=8, hidden=8),
        Data(source_unit="words", target_unit="words"),
        Training(epochs=2, batch_tokens=40, warmup=5, learning_rate=0.01, save_seconds=0.0),
    ).with_flags(flags)


def write_tsv(path, pairs):
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8")
    return path
