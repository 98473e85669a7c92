"""Adam with decoupled weight decay, fused, and set so that a graph can hold it."""

import torch
from torch import Tensor, nn

from regard.translation.recipe import Training

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


def moments(optimiser: torch.optim.Optimizer) -> dict[int, dict[str, Tensor]]:
    """Return the optimiser's state by parameter index, as checkpoints store it."""
    return optimiser.state_dict()["state"]


def restore(optimiser: torch.optim.Optimizer, moments: dict[int, dict[str, Tensor]]) -> None:
    """Load the result of `moments`; the optimiser keeps its own options."""
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
