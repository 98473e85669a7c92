"""The contest of a beam search: which proposals go on, which have finished, which have no chance left."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.translation.search.best import best_first
from regard.translation.search.history import Ends
from regard.translation.search.limits import Limits
from regard.translation.search.penalty import penalties
from regard.translation.search.step import Stepped
from regard.translation.vocabulary import END

# Ranks every unfinished hypothesis after every finished one; the unfinished of a sentence come in order, and a
# stable sort leaves them so.
UNFINISHED = -1e300


@dataclass(frozen=True, eq=False)
class Chosen:
    """The proposals that a step accepted, each (active, beams): those that go on, best first, then the others.

    A total of -inf is an empty place.
    """

    totals: Tensor
    tokens: Tensor
    parents: Tensor


@dataclass(frozen=True, eq=False)
class Contest:
    """The sentences that are still being searched.

    rows: int64 (active,), their numbers in the batch.
    totals: float64 (active, beams), log-probabilities so far; -inf in a place that is finished or empty.
    places: int64 (active, 1), how many beams are not finished.
    ends: (active, nbest), the best hypotheses so far.
    broken: bool (active,), who has met a NaN.
    beams: how many places a sentence has at first.
    penalties: float64 (longest + 2,), what a total of each length is divided by.
    """

    rows: Tensor
    totals: Tensor
    places: Tensor
    ends: Ends
    broken: Tensor
    limits: Limits
    beams: int
    penalties: Tensor

    @classmethod
    def begin(
        cls, batch: int, beams: int, nbest: int, strength: float, limits: Limits, device: torch.device | str
    ) -> Contest:
        """All sentences with one beam, before the first word."""
        return cls(
            rows=torch.arange(batch, device=device),
            totals=torch.zeros((batch, 1), dtype=torch.float64, device=device),
            places=torch.full((batch, 1), beams, device=device),
            ends=Ends.none(batch, nbest, device),
            broken=torch.zeros(batch, dtype=torch.bool, device=device),
            limits=limits,
            beams=beams,
            penalties=penalties(limits.most + 1, strength, device),
        )

    @property
    def going(self) -> Tensor:
        """bool (active,): who has a beam that goes on."""
        return self.totals.amax(1) > -torch.inf

    def choose(self, stepped: Stepped, length: int) -> Chosen:
        """The best proposals of all beams, by (total, -token, -beam); as many as there are places."""
        words, tokens = best_first(stepped.log_probabilities, self.beams + self.limits.spare(length))
        # Rounding may lift a certain word above 0, and a total that rose would outrun the bound of an early stop.
        totals = self.totals[..., None] + words.clamp(max=0.0)
        refused = self.limits.refused(tokens, length) & ~words.isnan()  # a NaN is let through, to be reported
        idle = (self.totals == -torch.inf)[..., None]
        totals, tokens = totals.masked_fill(idle | refused, -torch.inf).flatten(1), tokens.flatten(1)
        beam = torch.arange(self.totals.shape[1], device=tokens.device).repeat_interleave(words.shape[-1])
        # Three keys by two stable sorts: proposals stand in the order of their beams already.
        by_token = tokens.argsort(dim=1, stable=True)
        totals, order = totals.gather(1, by_token).sort(dim=1, descending=True, stable=True)
        order = by_token.gather(1, order[:, : self.beams])
        totals = totals[:, : self.beams]
        rank = torch.arange(totals.shape[1], device=tokens.device)
        totals = totals.masked_fill(rank >= self.places, -torch.inf)
        return self._arranged(Chosen(totals, tokens.gather(1, order), beam[order]), length)

    def _arranged(self, chosen: Chosen, length: int) -> Chosen:
        """The same, with those that go on in front."""
        stays = (chosen.totals == -torch.inf) | (chosen.tokens == END) | (self.limits.longest == length)[:, None]
        order = stays.to(torch.uint8).argsort(dim=1, stable=True)
        return Chosen(*(field.gather(1, order) for field in (chosen.totals, chosen.tokens, chosen.parents)))

    def after(self, chosen: Chosen, length: int, *, stop_early: bool) -> Contest:
        """The contest after a step: some have finished, some are cut off, some have no chance left."""
        there = chosen.totals > -torch.inf
        ended = there & (chosen.tokens == END)
        cut = there & ~ended & (self.limits.longest == length)[:, None]
        scores = chosen.totals / self.penalties[length]
        key = scores.masked_fill(~ended, -torch.inf).masked_fill(cut, UNFINISHED)
        step = torch.full_like(chosen.tokens, length - 1)
        slot = torch.arange(key.shape[1], device=key.device).expand(key.shape)
        ends = self.ends.best_with(Ends(key, chosen.totals, step, slot))
        totals = chosen.totals.masked_fill(ended | cut, -torch.inf)
        if stop_early:
            hopeless = self._last_chance(totals, length) <= ends.key[:, -1:]
            totals = totals.masked_fill(hopeless, -torch.inf)
        return replace(
            self,
            totals=totals,
            places=self.places - ended.sum(1, keepdim=True),
            ends=ends,
            broken=self.broken | chosen.totals.isnan().any(1),
        )

    def narrowed(self) -> Contest:
        """The contest without the places that no sentence uses any more; it waits for the device."""
        # Who goes on stands in front, best first, and who has no chance left is the last of them.
        width = max(1, int((self.totals > -torch.inf).sum(1).amax())) if len(self.totals) else 1
        return replace(self, totals=self.totals[:, :width])

    def _last_chance(self, totals: Tensor, length: int) -> Tensor:
        """No score above this is left to a beam: (active, beams).

        A total cannot rise, and total / penalty is monotone in the length: its maximum stands at one of the ends.
        """
        at_longest = self.penalties[self.limits.longest][:, None]
        return torch.maximum(totals / self.penalties[length + 1], totals / at_longest)

    def keep(self, kept: Tensor) -> Contest:
        """The contest of some of the sentences."""
        return replace(
            self,
            rows=self.rows[kept],
            totals=self.totals[kept],
            places=self.places[kept],
            ends=self.ends.keep(kept),
            broken=self.broken[kept],
            limits=self.limits.keep(kept),
        )
