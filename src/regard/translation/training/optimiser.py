"""Adam with decoupled weight decay, fused, and set so that a graph can hold it."""

from typing import Any

import torch
from torch import Tensor, nn

from regard.translation.training.recipe import Training

BETAS = (0.9, 0.98)


def make_optimiser(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """On a GPU the learning rate is a tensor: graphs read it, and setting it does not record them anew."""
    parameters = list(model.parameters())
    device = parameters[0].device
    on_gpu = device.type == "cuda"
    rate = torch.tensor(training.learning_rate, device=device) if on_gpu else training.learning_rate
    return torch.optim.AdamW(
        parameters, lr=rate, betas=BETAS, weight_decay=training.weight_decay, fused=True, capturable=on_gpu
    )


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next update."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def restore(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take up the moments of a checkpoint; how they are computed stays as this device needs it."""
    own = [{name: group[name] for name in ("lr", "capturable", "fused")} for group in optimiser.param_groups]
    optimiser.load_state_dict(state)
    for group, options in zip(optimiser.param_groups, own, strict=True):
        group.update(options)
