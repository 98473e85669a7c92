"""Greedy search: the most probable word at every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.translation.search.best import best_first
from regard.translation.search.effort import Effort
from regard.translation.search.hypothesis import Hypothesis
from regard.translation.search.limits import NEVER_WRITTEN, Limits
from regard.translation.search.penalty import checked_strength
from regard.translation.search.step import State, Step
from regard.translation.search.walk import walk


@torch.no_grad()
def greedy(
    step: Step,
    state: State,
    batch: int,
    *,
    longest: int | Tensor,
    length_penalty: float = 1.0,
    shortest: int = 0,
    forbidden: Sequence[int] = NEVER_WRITTEN,
    source_lengths: Tensor | None = None,
    device: torch.device | str = "cpu",
    effort: Effort | None = None,
) -> list[Hypothesis]:
    """One translation of every sentence, written a most probable word at a time; of equal words the smaller token.

    It is `beam` with one beam, number for number, without what only several beams need. The arguments are the same;
    the length penalty enters the score alone.
    """
    strength = checked_strength(length_penalty)
    limits = Limits.checked(batch, shortest, longest, forbidden, device)

    def choose(log_probabilities: Tensor, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
        words, tokens = best_first(log_probabilities, 1 + limits.spare(length))
        allowed = ~limits.refused(tokens, length) | words.isnan()  # a NaN is let through, to be reported
        first = allowed.to(torch.uint8).argmax(-1, keepdim=True)  # of equal ones argmax gives the first
        return words.gather(-1, first)[..., 0], tokens.gather(-1, first)[..., 0]

    effort = Effort.on(device) if effort is None else effort
    history, ends = walk(step, state, batch, choose, count=1, limits=limits, effort=effort)
    return [hypotheses[0] for hypotheses in history.trace(ends, strength, source_lengths)]
