"""Tensors that a model has under several names: tied weights, and a joint vocabulary's one table."""

from torch import nn


def names_of_each(model: nn.Module) -> list[list[str]]:
    """The names in the model's state of each of its tensors, in order of their first."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return list(names.values())
