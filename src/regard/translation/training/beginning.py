"""The recipe and the first model of a training: defaults, then a TOML file, then flags; and what fine-tuning keeps."""

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.translation.model import EncoderDecoder
from regard.translation.model_folder import Loaded, load
from regard.translation.training.recipe import Recipe


def choose_recipe(base: Recipe, file: Path | None, flags: Mapping[str, Any]) -> Recipe:
    """What `base` says, unless the TOML file says otherwise, unless a flag does.

    flags: values by their names alone, {"epochs": 5}; only those that were given.
    """
    return base.with_flags(flags) if file is None else Recipe.read(file, base, flags)


def fine_tuned(base: Recipe, init: Loaded) -> Recipe:
    """`base` with the architecture of a trained model, and the units of its vocabularies."""
    units = {"source_unit": init.source_vocabulary.unit, "target_unit": init.target_vocabulary.unit}
    bpe_dropout = base.data.bpe_dropout if "bpe" in units.values() else 0.0
    return replace(base, model=init.model.architecture, data=replace(base.data, **units, bpe_dropout=bpe_dropout))


def begin_from(folder: Path, recipe: Recipe, init: Loaded) -> Loaded:
    """The model of `folder` with the recipe's dropout; everything else of it must be as the recipe says.

    init: what was loaded from the folder.
    """
    was, wanted = init.model.architecture, recipe.model
    kept = {entry.name: (getattr(was, entry.name), getattr(wanted, entry.name)) for entry in fields(was)}
    kept |= {
        "source_unit": (init.source_vocabulary.unit, recipe.data.source_unit),
        "target_unit": (init.target_vocabulary.unit, recipe.data.target_unit),
    }
    for name, (had, asked) in kept.items():
        if had != asked and not name.endswith("_dropout"):
            raise RegardError(
                name,
                got=f"{asked}, where --init {folder} has {had}",
                needed="the model as it was trained; only its dropout can be changed",
                repair="Leave it out.",
            )
    if was == wanted:
        return init
    model = EncoderDecoder(wanted, len(init.source_vocabulary), len(init.target_vocabulary))
    model.load_state_dict(init.model.state_dict())
    return replace(init, model=model)


def fingerprint(model: EncoderDecoder) -> str:
    """A digest of all weights: a resumed training must have begun from the same ones."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def load_beginning(folder: Path) -> Loaded:
    """A trained model, on the CPU; what is wrong with its folder is about `init`."""
    try:
        return load(folder, torch.device("cpu"))
    except RegardError as refusal:
        raise refusal.about("init") from None
