"""What a search needs of a model: a step function, and a state that can be reordered and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError


class State(Protocol):
    """What a decoder carries from one step to the next, for all beams of all sentences; never changed in place.

    Beams are an axis of their own, (batch, beams, ...): the beams of a sentence are so many queries to its one
    memory, which is never copied for them. A first state has one beam.
    """

    def reorder(self, beams: Tensor) -> Self:
        """The state in which each new beam continues an old one of the same sentence.

        beams: int64 (batch, new beams), numbers of old beams; any of them any number of times.
        """
        ...

    def keep(self, rows: Tensor) -> Self:
        """The state of some sentences alone; their memories shrink with it.

        rows: int64 (kept,), numbers of sentences, in order.
        """
        ...


@dataclass(frozen=True, eq=False)
class Stepped:
    """What one step of a decoder gives.

    log_probabilities: (batch, beams, vocabulary), of the next word; normalised, or with words left out at -inf.
    weights: (batch, beams, source), the attention of this step, 0 at padding; None without attention. A search keeps
        them to its end: a step must not write into them again.
    state: what the next step continues from.
    """

    log_probabilities: Tensor
    weights: Tensor | None
    state: State


Step = Callable[[Tensor, State], Stepped]
"""tokens, state -> Stepped. tokens: int64 (batch, beams), the words just written; `symbols.BEGIN` at first."""

# Half precision may round a sum of probabilities up by a few hundredths of its logarithm; logits miss by far more.
MOST_LOG_SUM = 0.1


def check_shape(log_probabilities: Tensor, batch: int, beams: int) -> None:
    """Refuse what a step function may not return, before its axes are mistaken for others."""
    if log_probabilities.ndim != 3 or log_probabilities.shape[:2] != (batch, beams):
        raise RegardError(
            "log_probabilities",
            got=f"{describe(log_probabilities)} from the step function",
            needed=f"(batch, beams, vocabulary) with batch {batch} and beams {beams}, as the tokens it was given",
            repair="Return a row for every token; reorder and keep must have changed the state accordingly.",
        )


def check_normalised(log_probabilities: Tensor) -> None:
    """Refuse logits in the place of log-probabilities; words left out, at -inf, are welcome."""
    largest = float(log_probabilities.detach().float().logsumexp(-1).amax()) if log_probabilities.numel() else 0.0
    if largest > MOST_LOG_SUM:
        raise RegardError(
            "log_probabilities",
            got=f"probabilities that sum to e^{largest:.3g} at the first step",
            needed="logarithms of probabilities, which sum to at most 1 over the vocabulary",
            repair="Return logits.log_softmax(-1) from the step function.",
        )


def check_numbers(broken: Tensor, rows: Tensor, length: int) -> None:
    """Refuse to go on with what is not a number; it waits for the device.

    broken: bool (active,), which of the sentences `rows` have met a NaN in their first `length` steps.
    """
    if bool(broken.any()):
        sentence = int(rows[broken][0])
        raise RegardError(
            "log_probabilities",
            got=f"NaN from the step function, for sentence {sentence}, within its first {length} steps",
            needed="numbers",
            repair="Look for weights that are not finite in the model, or for a float16 that overflowed.",
        )
