"""What makes two trainings the same one: a folder goes on with the training that was begun in it, and no other."""

from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.translation.dataset import Corpus
from regard.translation.folder import Loaded
from regard.translation.recipe import Recipe, fingerprint


def identity_of(recipe: Recipe, corpus: Corpus, init: Loaded | None, processes: int) -> dict[str, Any]:
    """Every choice, the data, the weights it begins from, and how many processes share it."""
    return {
        "recipe": recipe.to_dict(),
        "corpus": corpus.fingerprint(),
        "init": None if init is None else fingerprint(init.model),
        "processes": processes,
    }


def check_same(begun: dict[str, Any], wanted: dict[str, Any], out: Path) -> None:
    """Refuse to go on with another training; what differs is named."""
    for key, value in wanted.items():
        if begun.get(key) != value:
            raise RegardError(
                "out",
                got=f"{out}, where a training with another {key} was begun",
                needed="a new folder, or the same recipe, data and number of processes",
                repair="Choose another folder, or delete this one.",
            )
