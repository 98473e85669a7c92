"""What a search spends on looking after itself: how often it looks, when it packs, whether it stops early."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from regard.errors import RegardError


@dataclass(frozen=True)
class Effort:
    """How a search saves work. Nothing here changes what it finds.

    stop_early: whether a sentence is left as soon as no unfinished beam can still enter its n best.
    look_every: steps between looks at who has finished; each look waits for the device.
    pack_at: the share of finished sentences at which the others are packed together; above 1, never.
    narrow: whether beams that are finished in every sentence are no longer computed.
    """

    stop_early: bool = True
    look_every: int = 1
    pack_at: float = 0.125
    narrow: bool = True

    def __post_init__(self) -> None:
        if self.look_every < 1:
            raise RegardError(
                "look_every",
                got=f"{self.look_every}",
                needed="a number of steps, 1 or more",
                repair="Look at every step on a CPU, seldom on a GPU.",
            )

    @classmethod
    def on(cls, device: torch.device | str) -> Effort:
        """What pays on this device: a CPU saves every row it can, a GPU waits for every answer."""
        return cls() if torch.device(device).type == "cpu" else cls(look_every=8, pack_at=inf, narrow=False)

    def survivors(self, going: Tensor, length: int) -> Tensor | None:
        """The rows to go on with, packed together: none at all when the search is over, None to leave all as they are.

        going: bool (active,), who has not finished after `length` steps.
        """
        if length % self.look_every:
            return None
        count = int(going.sum())
        finished = len(going) - count
        if count and (not finished or finished < self.pack_at * len(going)):
            return None
        return going.nonzero()[:, 0]
