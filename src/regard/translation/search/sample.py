"""Sampling: words drawn from the model's own distribution, sharpened or cut off where wished."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.translation.counts import count_of
from regard.translation.search.effort import Effort
from regard.translation.search.hypothesis import Hypothesis
from regard.translation.search.limits import NEVER_WRITTEN, Limits
from regard.translation.search.penalty import checked_strength
from regard.translation.search.step import State, Step
from regard.translation.search.walk import walk
from regard.translation.vocabulary import END


@torch.no_grad()
def sample(
    step: Step,
    state: State,
    batch: int,
    *,
    longest: int | Tensor,
    generator: torch.Generator,
    count: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    length_penalty: float = 0.0,
    shortest: int = 0,
    forbidden: Sequence[int] = NEVER_WRITTEN,
    source_lengths: Tensor | None = None,
    device: torch.device | str = "cpu",
    effort: Effort | None = None,
) -> list[list[Hypothesis]]:
    """Draw `count` translations of every sentence, independent of each other, in the order drawn.

    Args:
        step: tokens int64 (batch, beams), state -> Stepped.
        state: of all sentences, with one beam, before BEGIN is read.
        batch: how many sentences there are.
        longest: the most tokens of a hypothesis, END included; one number, or int64 (batch,).
        generator: where chance comes from; one number is drawn for each sentence, walk and step.
        count: how many translations are drawn for each sentence.
        temperature: log-probabilities are divided by it: below 1 sharper, above 1 flatter.
        top_k: draw among the k most probable words only; of equal words the smaller token.
        top_p: draw among the fewest most probable words that hold at least this probability together.
        length_penalty: for the score alone.
        shortest: the fewest tokens of a hypothesis, END included.
        forbidden: words that are never written.
        source_lengths: int64 (batch,), to cut alignments to their sentence.
        device: where the step function expects its tokens.
        effort: how work is saved; without it, what pays on the device.

    Returns:
        For each sentence its hypotheses; log-probabilities are the model's own, whatever the temperature.
    """
    count = _checked_wishes(count, temperature, top_k, top_p)
    strength = checked_strength(length_penalty)
    limits = Limits.checked(batch, shortest, longest, forbidden, device)

    def choose(log_probabilities: Tensor, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
        # Drawn for the whole batch, so that who has finished already does not shift the numbers of the others.
        chance = torch.rand(batch, count, 1, generator=generator, device=generator.device, dtype=torch.float64)
        forbidden = limits.forbidden[limits.forbidden < log_probabilities.shape[-1]]
        allowed = log_probabilities.float().index_fill(-1, forbidden, -torch.inf)
        if length < limits.shortest:
            allowed[..., END] = -torch.inf
        # Below the most probable word, so that no temperature makes all of them impossible.
        below = (allowed - allowed.amax(-1, keepdim=True)).double()
        probability = restrict(below / temperature, top_k, top_p).softmax(-1)
        tokens = _draw(probability, chance.to(device)[rows])
        words = allowed.gather(-1, tokens)[..., 0]
        return words.masked_fill(log_probabilities.isnan().any(-1), torch.nan), tokens[..., 0]

    effort = Effort.on(device) if effort is None else effort
    history, ends = walk(step, state, batch, choose, count=count, limits=limits, effort=effort)
    return history.trace(ends, strength, source_lengths, each=True)


def restrict(log_probabilities: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """The distribution with unlikely words at -inf: (..., vocabulary) -> (..., vocabulary).

    >>> restrict(torch.tensor([0.5, 0.3, 0.2]).log(), None, 0.6).exp()
    tensor([0.5000, 0.3000, 0.0000])
    """
    if top_k is None and top_p is None:
        return log_probabilities
    ranked, order = log_probabilities.sort(dim=-1, descending=True, stable=True)
    dropped = torch.zeros_like(ranked, dtype=torch.bool)
    if top_k is not None:
        dropped[..., top_k:] = True
    if top_p is not None:
        share = ranked.double().softmax(-1)
        dropped |= share.cumsum(-1) - share >= top_p  # what the better words hold is enough already
    return log_probabilities.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), -torch.inf)


def _draw(probability: Tensor, chance: Tensor) -> Tensor:
    """The word at which the running sum passes `chance` of the total; a word of probability 0 is never drawn.

    probability: float64 (..., vocabulary). chance: float64 (..., 1), in [0, 1). Returns int64 (..., 1).
    """
    running = probability.cumsum(-1)
    drawn = torch.searchsorted(running, chance * running[..., -1:], right=True)
    return drawn.clamp(max=probability.shape[-1] - 1)  # of a NaN; it is reported with the totals


def _checked_wishes(count: int, temperature: float, top_k: int | None, top_p: float | None) -> int:
    """How many are drawn, if all wishes can be fulfilled."""
    if not _is_number(temperature) or not 0 < temperature < torch.inf:
        raise RegardError(
            "temperature",
            got=f"{temperature!r}",
            needed="a number above 0",
            repair="Towards 0 it is greedy search: use greedy for that; 1 is the model's own distribution.",
        )
    if top_k is not None:
        count_of("top_k", top_k, least=1, needed="1 or more words", repair="Pass None for all of them.")
    if top_p is not None and not (_is_number(top_p) and 0 < top_p <= 1):
        raise RegardError("top_p", got=f"{top_p!r}", needed="above 0, up to 1", repair="Pass None for all words.")
    return count_of("count", count, least=1, needed="1 or more", repair="Say how many translations to draw.")


def _is_number(given: object) -> bool:
    return isinstance(given, Real) and not isinstance(given, bool)
