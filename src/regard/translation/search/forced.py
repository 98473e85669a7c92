"""Given translations read through the same step function that a search writes with: their scores and alignments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError
from regard.translation.search.penalty import penalty
from regard.translation.search.step import State, Step, check_normalised, check_numbers, check_shape
from regard.translation.vocabulary import BEGIN, END


@dataclass(frozen=True, eq=False)
class Forced:
    """What a model thinks of given targets; END is their last token.

    log_probabilities: (batch, target + 1), of every token given those before it; 0 after END.
    lengths: int64 (batch,), tokens with END.
    weights: (batch, target + 1, source), the attention of every step, 0 after END; None without attention.
    """

    log_probabilities: Tensor
    lengths: Tensor
    weights: Tensor | None

    @property
    def totals(self) -> Tensor:
        """(batch,), the log-probability of every target; float64."""
        return self.log_probabilities.double().sum(1)

    def scores(self, length_penalty: float) -> Tensor:
        """(batch,), what `beam` would rank the targets by."""
        return self.totals / penalty(self.lengths.double(), length_penalty)

    def alignment(self, sentence: int, source_length: int | None = None) -> Tensor | None:
        """(tokens + 1, source), of one sentence alone."""
        if self.weights is None:
            return None
        return self.weights[sentence, : int(self.lengths[sentence]), :source_length]


def forced(step: Step, state: State, targets: Tensor, lengths: Tensor) -> Forced:
    """Read given targets, each after BEGIN and to its END.

    It is differentiable where the step function is.

    Args:
        step: tokens int64 (batch, beams), state -> Stepped.
        state: of all sentences, with one beam, before BEGIN is read.
        targets: int64 (batch, target), without BEGIN and END, padded with anything.
        lengths: int64 (batch,), how many tokens each has.
    """
    _check_targets(targets, lengths)
    device = targets.device
    batch, longest = len(targets), int(lengths.max()) if len(targets) else 0
    lengths = lengths.to(device)
    position = torch.arange(longest + 1, device=device)
    wanted = torch.cat((targets[:, :longest], targets.new_zeros(batch, 1)), 1)
    wanted = wanted.masked_fill(position >= lengths[:, None], END)  # also what is read after the end, unheard
    read = torch.full((batch, 1), BEGIN, device=device)
    words, weights = [], []
    for column in range(longest + 1 if batch else 0):
        stepped = step(read, state)
        check_shape(stepped.log_probabilities, batch, 1)
        if column == 0:
            check_normalised(stepped.log_probabilities)
        read, state = wanted[:, column, None], stepped.state
        words.append(stepped.log_probabilities.gather(2, read[..., None])[:, 0, 0].float())
        if stepped.weights is not None:
            weights.append(stepped.weights[:, 0])
    after = position > lengths[:, None]
    scores = torch.stack(words, 1) if words else torch.zeros(batch, longest + 1, device=device)
    scores = scores.masked_fill(after, 0.0)
    check_numbers(scores.isnan().any(1), torch.arange(batch, device=device), longest + 1)
    looked = torch.stack(weights, 1).masked_fill(after[..., None], 0.0) if weights else None
    return Forced(scores, lengths + 1, looked)


def _check_targets(targets: Tensor, lengths: Tensor) -> None:
    if targets.ndim != 2 or targets.dtype != torch.int64:
        raise RegardError(
            "targets",
            got=describe(targets),
            needed="int64 (batch, target), tokens without BEGIN and END",
            repair="Pad the targets to one length and pass their lengths beside them.",
        )
    fits = lengths.shape == targets.shape[:1] and not lengths.is_floating_point()
    if not fits or (len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= targets.shape[1]):
        raise RegardError(
            "lengths",
            got=f"{describe(lengths)}" + (f" up to {int(lengths.max())}" if fits else ""),
            needed=f"an integer from 0 to {targets.shape[1]} for each of {len(targets)} targets",
            repair="Count the tokens of each target, without BEGIN, END and padding.",
        )
