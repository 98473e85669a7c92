"""The state of torch's random generators, which a resumed training takes up where it was."""

import torch
from torch import Tensor


def read(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators that a training on this device draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore(device: torch.device, states: dict[str, Tensor]) -> None:
    """Go on drawing from there."""
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
