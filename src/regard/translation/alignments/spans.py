"""How much of the attention falls where the truth is, for corpora whose alignment is known by construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.translation.corpora.example import Span

Stretch = tuple[int, int]
"""From start to end, in characters."""


@dataclass(frozen=True)
class SpanMass:
    """Attention on the right characters, added up over target tokens; add records to pool sentences.

    mass: the sum over these tokens of what each put on the right source tokens.
    tokens: how many target tokens have a counterpart in the source.

    >>> (SpanMass(0.9, 1) + SpanMass(2.1, 3)).share
    0.75
    """

    mass: float
    tokens: int

    @property
    def share(self) -> float:
        """The mean over tokens; NaN of none."""
        return self.mass / self.tokens if self.tokens else float("nan")

    def __add__(self, other: SpanMass) -> SpanMass:
        return SpanMass(self.mass + other.mass, self.tokens + other.tokens)


def mass_on_spans(
    weights: Tensor, target_spans: Sequence[Stretch], source_spans: Sequence[Stretch], truth: Sequence[Span]
) -> SpanMass:
    """The attention that target tokens put on the source tokens that say the same.

    A target token counts where its characters overlap the target of a true span; right for it are all source tokens
    whose characters overlap the source of such a span.

    Args:
        weights: (target tokens, source tokens), of one sentence; END may follow as the last of either.
        target_spans: for each target token its characters; END left out, or empty.
        source_spans: the same for source tokens.
        truth: the spans that say the same on both sides.
    """
    _check_tokens(weights, target_spans, source_spans)
    target = _overlaps(target_spans, [[span.target] for span in truth])
    source = _overlaps(source_spans, [span.source for span in truth])
    right = (target @ source.T) > 0  # (target tokens, source tokens)
    counted = target.any(1)
    given = weights[: len(target_spans), : len(source_spans)].detach().double().cpu()
    return SpanMass(float((given * right)[counted].sum()), int(counted.sum()))


def _overlaps(tokens: Sequence[Stretch], spans: Sequence[Sequence[Stretch]]) -> Tensor:
    """float64 (tokens, spans): 1 where a token shares a character with one of a span's stretches."""
    shared = [
        [any(max(start, first) < min(end, last) for first, last in stretches) for stretches in spans]
        for start, end in tokens
    ]
    return torch.tensor(shared, dtype=torch.float64).reshape(len(tokens), len(spans))


def _check_tokens(weights: Tensor, target_spans: Sequence[Stretch], source_spans: Sequence[Stretch]) -> None:
    if weights.ndim != 2:
        raise RegardError(
            "weights",
            got=describe(weights),
            needed="(target tokens, source tokens), of one sentence",
            repair="Take one sentence of the batch, cut to its lengths.",
        )
    given = (("target_spans", target_spans, weights.shape[0]), ("source_spans", source_spans, weights.shape[1]))
    for argument, spans, tokens in given:
        if len(spans) not in (tokens, tokens - 1):
            raise RegardError(
                argument,
                got=f"{len(spans)} tokens",
                needed=f"{tokens}, as many as weights has, or {tokens - 1} where END is the last",
                repair="Pass the characters of every token.",
            )
