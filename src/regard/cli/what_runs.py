"""Which backend would run each kind of score on each device of this machine, and why not the others."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.attention import why
from regard.scores import Additive
from regard.scores.names import ScoreLike

DIM, HIDDEN = 16, 32
# A size that is small everywhere, and one that is not: (batch, tokens).
SIZES = ((2, 16), (4, 2048))


def findings() -> list[dict[str, Any]]:
    """For each device, kind of score and size: what runs, the error it promises, and the reasons against the rest."""
    found = []
    for device in devices():
        for what, score in _scores(device).items():
            for batch, tokens in SIZES:
                size = f"{batch} x {tokens} x {tokens}"
                found.append(
                    {"what": what, "size": size, "device": device, **_choice(score, _tokens(batch, tokens, device))}
                )
    return found


def devices() -> Iterator[str]:
    """The CPU, and each GPU."""
    yield "cpu"
    yield from (f"cuda:{index}" for index in range(torch.cuda.device_count()))


def _scores(device: str) -> dict[str, ScoreLike]:
    return {
        "dot product": "scaled_dot",
        "kernel of the distance": "laplacian",
        "additive": Additive(DIM, DIM, HIDDEN).to(device),
        "a function of yours": lambda query, key: query @ key.mT,
    }


def _tokens(batch: int, tokens: int, device: str) -> Tensor:
    return torch.zeros(batch, tokens, DIM, device=device)


def _choice(score: ScoreLike, tokens: Tensor) -> dict[str, Any]:
    explained = why(tokens, tokens, tokens, score)
    return {"backend": explained.backend, "error": explained.bound, "not": explained.refusals}
