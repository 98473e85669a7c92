"""A mode that marks what is made while it is on, so that a tensor that must not belong to it is noticed."""

import torch


class Marked(torch.Tensor):
    """A tensor that a mode has seen."""


class Relabelling(torch.overrides.TorchFunctionMode):
    """Every tensor that is made becomes a Marked one."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Run, and mark."""
        result = function(*args, **(kwargs or {}))
        return result.as_subclass(Marked) if type(result) is torch.Tensor else result
