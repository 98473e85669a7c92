"""What a search returns: a sentence with its score, its probability and its alignment."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One translation.

    tokens: its words, without BEGIN and END.
    score: what ranks it: its log-probability, divided by the length penalty.
    log_probability: of all its tokens, END included.
    alignment: (tokens + 1, source), the attention of every step, the last for END; one row less when it is
        unfinished, None when the model has no attention.
    finished: whether it wrote END; else it was cut off at the longest length allowed.
    """

    tokens: tuple[int, ...]
    score: float
    log_probability: float
    alignment: Tensor | None
    finished: bool = True

    @property
    def length(self) -> int:
        """How many steps it took: its tokens, and END where it is finished."""
        return len(self.tokens) + self.finished
