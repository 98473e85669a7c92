"""The steps of a search, kept with back-pointers, and traced back to whole sentences at its end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.translation.search.hypothesis import Hypothesis
from regard.translation.search.penalty import penalties
from regard.translation.vocabulary import END


@dataclass(frozen=True, eq=False)
class Ends:
    """Where the hypotheses of each sentence end; every tensor is (batch, hypotheses).

    key: float64, what ranks them; -inf where there is none.
    total: float64, the log-probability up to there.
    step: int64, the last step, from 0.
    slot: int64, the beam at that step.
    """

    key: Tensor
    total: Tensor
    step: Tensor
    slot: Tensor

    @classmethod
    def none(cls, batch: int, count: int, device: torch.device | str) -> Ends:
        """Room for `count` hypotheses of each sentence."""
        numbers = torch.full((batch, count), -torch.inf, dtype=torch.float64, device=device)
        places = torch.zeros((batch, count), dtype=torch.int64, device=device)
        return cls(numbers, numbers, places, places)

    def _fields(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.key, self.total, self.step, self.slot

    def keep(self, rows: Tensor) -> Ends:
        """Those of some sentences."""
        return Ends(*(field[rows] for field in self._fields()))

    def put(self, rows: Tensor, ends: Ends) -> Ends:
        """These, with the rows of some sentences replaced."""
        return Ends(*(old.index_copy(0, rows, new) for old, new in zip(self._fields(), ends._fields(), strict=True)))

    def best_with(self, ends: Ends) -> Ends:
        """As many as there is room for, best first; of equal ones the earlier, then the earlier beam."""
        count = self.key.shape[1]
        both = [torch.cat(pair, 1) for pair in zip(self._fields(), ends._fields(), strict=True)]
        order = both[0].sort(dim=1, descending=True, stable=True).indices[:, :count]
        return Ends(*(field.gather(1, order) for field in both))


@dataclass(frozen=True, eq=False)
class _Moment:
    """One step: which sentences took it, what each beam wrote, which beam it came from, where it looked."""

    rows: Tensor
    tokens: Tensor
    parents: Tensor
    weights: Tensor | None


class History:
    """What every step of a search wrote. Weights are kept for every beam, since any may turn out to be the best."""

    def __init__(self) -> None:
        self._moments: list[_Moment] = []

    def write(self, rows: Tensor, tokens: Tensor, parents: Tensor, weights: Tensor | None) -> None:
        """Keep a step.

        rows: int64 (active,), the sentences that took it.
        tokens: int64 (active, beams), what was written.
        parents: int64 (active, beams), the old beam that each continues.
        weights: (active, old beams, source), where the old beams looked to write it.
        """
        self._moments.append(_Moment(rows, tokens, parents, weights))

    def trace(
        self, ends: Ends, strength: float, source_lengths: Tensor | None, *, each: bool = False
    ) -> list[list[Hypothesis]]:
        """The hypotheses that end there, sentence by sentence, scored with the length penalty.

        source_lengths: int64 (batch,), to cut alignments to their sentence. each: every one must have been found, not
        just one for each sentence.
        """
        _check_found(ends, each=each)
        tokens, weights = self._walk_back(ends)
        lengths = ends.step + 1
        scores = (ends.total / penalties(len(self._moments), strength, lengths.device)[lengths]).tolist()
        cuts = None if source_lengths is None else source_lengths.tolist()
        found, written, totals = (ends.key > -torch.inf).tolist(), tokens.tolist(), ends.total.tolist()
        sizes = lengths.tolist()
        results = []
        for row, there in enumerate(found):
            hypotheses = []
            for column, exists in enumerate(there):
                if not exists:
                    continue
                size = sizes[row][column]
                words = tuple(written[row][column][:size])
                finished = words[-1] == END
                alignment = None
                if weights is not None:
                    width = weights.shape[-1] if cuts is None else cuts[row]
                    alignment = weights[row, column, :size, :width].clone()
                hypotheses.append(
                    Hypothesis(
                        words[:-1] if finished else words,
                        scores[row][column],
                        totals[row][column],
                        alignment,
                        finished,
                    )
                )
            results.append(hypotheses)
        return results

    def _walk_back(self, ends: Ends) -> tuple[Tensor, Tensor | None]:
        """Follow the back-pointers of all hypotheses at once: (batch, hypotheses, steps), and the weights beside."""
        batch, count = ends.step.shape
        steps = len(self._moments)
        tokens = ends.step.new_zeros(batch, count, steps)
        weights = self._room_for_weights(batch, count)
        slots = ends.slot
        for step in range(steps - 1, -1, -1):
            moment = self._moments[step]
            rows, here = moment.rows, slots[moment.rows]
            passed = ends.step[rows] >= step  # the others end earlier: their slots stay where they are
            beam = torch.where(passed, here, 0)
            tokens[rows, :, step] = moment.tokens.gather(1, beam)
            old = moment.parents.gather(1, beam)
            if weights is not None and moment.weights is not None:
                source = moment.weights.shape[-1]
                weights[rows, :, step, :source] = moment.weights.gather(1, old[..., None].expand(-1, -1, source))
            slots = slots.index_copy(0, rows, torch.where(passed, old, here))
        return tokens, None if weights is None else weights.cpu()

    def _room_for_weights(self, batch: int, count: int) -> Tensor | None:
        kept = [moment.weights for moment in self._moments if moment.weights is not None]
        if not kept:
            return None
        return kept[0].new_zeros(batch, count, len(self._moments), max(weights.shape[-1] for weights in kept))


def _check_found(ends: Ends, *, each: bool) -> None:
    """Refuse to return nothing for a sentence, as if it had a translation, or fewer than were drawn."""
    missing = ends.key == -torch.inf
    lost = missing.any(1) if each else missing.all(1)
    if bool(lost.any()):
        raise RegardError(
            "log_probabilities",
            got=f"-inf for every word that sentence {int(lost.nonzero()[0])} might have written",
            needed="at least one word that is possible and not forbidden at every step",
            repair="Forbid fewer words, lower shortest, or leave more words possible in the step function.",
        )
