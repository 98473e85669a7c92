"""The structure of a checkpoint's state, checked before a training takes it up."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.translation.checkpoint import check_same_run
from regard.translation.recipe import Recipe
from regard.translation.training.standing import Best
from regard.translation.training.trainee import Trainee

FORMAT = 2


def check_state(
    state: dict[str, Any], identity: dict[str, Any], recipe: Recipe, trainee: Trainee, device: torch.device, out: Path
) -> None:
    """Refuse a state that another version wrote, that is damaged, or that belongs to another training.

    Args:
        state: what the checkpoint in `out` holds.
        identity: of the training that is to resume.
        recipe: of the same training.
        trainee: its model and optimiser, before they take up the state.
        device: where it trains.
        out: the model folder.
    """
    if state.get("format") != FORMAT:
        raise RegardError(
            "out",
            got=f"{out}, with a checkpoint of another version of regard",
            needed=f"a checkpoint of format {FORMAT}",
            repair="Choose another folder, or finish the training with the version of regard that began it.",
        )
    _check(out, "identity", lambda: bool(json.dumps(state["identity"])) and isinstance(state["identity"], dict))
    check_same_run(state["identity"], identity, out)
    processes = identity["processes"]
    parameters = dict(enumerate(trainee.model.parameters()))
    checks: dict[str, Callable[[], bool]] = {
        "machine": lambda: all(isinstance(word, str) for item in state["machine"].items() for word in item),
        "model": lambda: _are_alike(state["trainee"]["model"], trainee.model.state_dict()),
        "moments": lambda: all(
            _are_alike(moments, {"step": torch.tensor(0.0), "exp_avg": parameters[at], "exp_avg_sq": parameters[at]})
            for at, moments in state["trainee"]["moments"].items()
        ),
        "average": lambda: (
            len(state["trainee"]["average"]) <= recipe.training.average
            and all(_are_alike(dict(enumerate(weights)), parameters) for weights in state["trainee"]["average"])
        ),
        "standing": lambda: _is_standing(state["standing"], recipe.training.epochs),
        "sums": lambda: (
            len(state["sums"]) == processes
            and all(len(sums) == 3 and all(type(one) is float for one in sums) for sums in state["sums"])
        ),
        "random": lambda: (
            len(state["random"]) == processes and all(_are_random_states(one, device) for one in state["random"])
        ),
    }
    for name, check in checks.items():
        _check(out, name, check)


def _check(out: Path, name: str, check: Callable[[], bool]) -> None:
    try:
        fits = check()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError):
        fits = False  # any other structure than the one that is looked up
    if not fits:
        raise RegardError(
            "out",
            got=f"{out}, with a checkpoint whose {name!r} is damaged or was written by another program",
            needed="a checkpoint that regard train wrote",
            repair="Choose another folder, or delete this one to begin anew.",
        )


def _are_alike(found: Mapping[Any, object], wanted: Mapping[Any, Tensor]) -> bool:
    """Whether tensors have the names, shapes and dtypes of others."""
    return found.keys() == wanted.keys() and all(
        isinstance(tensor := found[name], Tensor) and tensor.shape == like.shape and tensor.dtype == like.dtype
        for name, like in wanted.items()
    )


def _is_standing(found: dict[str, Any], epochs: int) -> bool:
    counts = [found[name] for name in ("epoch", "within", "count")]
    return (
        found.keys() == {"epoch", "within", "count", "seconds", "best"}
        and all(type(count) is int and 0 <= count < 2**53 for count in counts)
        and found["within"] <= found["count"]
        and found["epoch"] <= epochs
        and type(found["seconds"]) is float
        and 0 <= found["seconds"] < math.inf
        and Best.read(found["best"]) is not None
        and found["best"]["epoch"] <= found["epoch"]
    )


def _are_random_states(found: dict[str, Any], device: torch.device) -> bool:
    torch.Generator().set_state(found["cpu"].cpu())
    if device.type == "cuda" and "cuda" in found:
        torch.Generator(device).set_state(found["cuda"].cpu())
    return True
