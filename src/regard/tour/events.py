"""What a walk tells while it goes on."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progressed:
    """Some of the way.

    share: of the whole tour, from 0 to 1. done, works: how many pieces of work have ended, of how many.
    under_way: where the others stand, such as "dates: update 120 of 594".
    """

    share: float
    done: int
    works: int
    under_way: str


Listener = Callable[[Progressed], None]


def silence(event: Progressed) -> None:
    """Listen to nothing."""
    del event
