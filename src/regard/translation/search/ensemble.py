"""Several models as one: the mean of their probabilities, and of their attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError
from regard.translation.search.step import State, Step, Stepped


@dataclass(frozen=True, eq=False)
class States:
    """The states of several models, side by side: the state of their ensemble."""

    each: tuple[State, ...]

    def reorder(self, beams: Tensor) -> States:
        """Every state reordered; beams: int64 (batch, new beams)."""
        return States(tuple(state.reorder(beams) for state in self.each))

    def keep(self, rows: Tensor) -> States:
        """Every state with some sentences alone; rows: int64 (kept,)."""
        return States(tuple(state.keep(rows) for state in self.each))


def ensemble(steps: Sequence[Step]) -> Step:
    """The step function of several models: log of the mean of their probabilities; its state is `States`.

    Attention weights are the mean over the models that have them, so the models must read the same source tokens;
    vocabularies must be the same too.
    """
    if not steps:
        raise RegardError(
            "steps", got="no step function", needed="one for each model", repair="Pass the steps of at least one model."
        )

    def step(tokens: Tensor, state: State) -> Stepped:
        if not isinstance(state, States) or len(state.each) != len(steps):
            raise RegardError(
                "state",
                got=f"{type(state).__name__}",
                needed=f"States with the states of {len(steps)} models, in the order of their steps",
                repair="Pass States((state_of_first, state_of_second, ...)).",
            )
        every = [one(tokens, its) for one, its in zip(steps, state.each, strict=True)]
        return Stepped(_log_mean(every), _mean_weights(every), States(tuple(one.state for one in every)))

    return step


def _log_mean(every: Sequence[Stepped]) -> Tensor:
    """log(mean of probabilities), without a table of all models at once."""
    total = every[0].log_probabilities
    for number, one in enumerate(every[1:], 1):
        if one.log_probabilities.shape != total.shape:
            raise RegardError(
                "steps",
                got=f"log-probabilities of {describe(total)} from model 0, {describe(one.log_probabilities)} "
                f"from model {number}",
                needed="the same vocabulary in every model",
                repair="Train the models of an ensemble with one vocabulary.",
            )
        total = torch.logaddexp(total, one.log_probabilities)
    return total - log(len(every)) if len(every) > 1 else total


def _mean_weights(every: Sequence[Stepped]) -> Tensor | None:
    weights = [one.weights for one in every if one.weights is not None]
    if any(one.shape != weights[0].shape for one in weights):
        raise RegardError(
            "weights",
            got=f"attention over {' and '.join(str(one.shape[-1]) for one in weights)} source tokens",
            needed="the same source tokens in every model",
            repair="Use models that share their source vocabulary.",
        )
    return torch.stack(weights).mean(0) if weights else None
