"""Alignments: attention between words as records, lines of text, pictures and measures.

A model attends from target tokens to source tokens. `merge_to_words` turns this into attention from words to words,
`Alignment` is the record of it. Two measures compare models: `normalized_entropy`, how evenly attention is spread, and
`span_attention`, how much of it is where the true alignment says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError
from regard.plots import check_format, save_as
from regard.plots.heatmaps import heatmap_apart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.translation.dataset import Pair, Span
    from regard.translation.translator import Translation

MAX_MASS = 1.01
"""A row of softmax weights exceeds 1 by its rounding: in half precision by some parts in a thousand."""
DIGITS = 4
"""Of weights in JSON."""
NO_WORD = "∅"
UNIFORM = 0.98
"""Weights of an untrained model have this normalized entropy or more, whatever the score; useful ones far less."""

CharRange = tuple[int, int]
"""The first character, and that after the last."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """How much each target word attended to each source word.

    Attributes:
        source_words: in the order of the sentence.
        target_words: in the order of the sentence.
        weights: (target words, source words), not negative, on the CPU; a row sums to 1 minus `unaligned`.

    Raises:
        RegardError: if the weights have another shape, or are not attention weights.
    """

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    weights: Tensor

    def __post_init__(self) -> None:
        """Check the shape and the values of the weights."""
        needed = (len(self.target_words), len(self.source_words))
        if tuple(self.weights.shape) != needed:
            raise RegardError(
                "weights",
                got=describe(self.weights),
                needed=f"{needed}: a row for each target word, a column for each source word",
                repair="Use Alignment.from_tokens, which merges tokens and leaves END out.",
            )
        sums = self.weights.sum(1)
        if not bool(((self.weights >= 0).all(1) & (sums <= MAX_MASS)).all()):
            raise RegardError(
                "weights",
                got=f"entries from {float(self.weights.min()):.3g}, rows that sum to up to {float(sums.max()):.3g}",
                needed="attention weights: not negative, at most 1 in a row",
                repair="Pass weights, not scores, of one head or the mean of several.",
            )

    @classmethod
    def from_tokens(
        cls,
        weights: Tensor,
        *,
        source_words: Sequence[str],
        target_words: Sequence[str],
        source_word_indices: Sequence[int],
        target_word_indices: Sequence[int],
    ) -> Alignment:
        """Merge attention between tokens to attention between words, as `merge_to_words` does.

        Args:
            weights: (target tokens, source tokens), of one sentence; END may be the last of either.
            source_words: the words of the source.
            target_words: the words of the target.
            source_word_indices: for each source token the number of its word; -1 for none.
            target_word_indices: the same for target tokens.
        """
        merged = merge_to_words(
            weights.detach().float().cpu(),
            target_word_indices,
            source_word_indices,
            target_count=len(target_words),
            source_count=len(source_words),
        )
        return cls(tuple(source_words), tuple(target_words), merged)

    @property
    def unaligned(self) -> Tensor:
        """The attention on no word, but on END or on tokens between words: (target words,)."""
        return (1 - self.weights.sum(1)).clamp(min=0)

    def links(self, threshold: float = 0.25) -> tuple[tuple[int, int], ...]:
        """Return (source word, target word) for each target word and its heaviest source word.

        Of equally heavy source words the first is taken.

        Args:
            threshold: minimum weight of a link; a target word whose weights are all smaller has none.
        """
        if self.weights.numel() == 0:
            return ()
        heaviest, place = self.weights.max(1)
        pairs = zip(place.tolist(), heaviest.tolist(), strict=True)
        return tuple((source, target) for target, (source, weight) in enumerate(pairs) if weight >= threshold)


def merge_to_words(
    weights: Tensor,
    target_words: Sequence[int],
    source_words: Sequence[int],
    *,
    target_count: int | None = None,
    source_count: int | None = None,
) -> Tensor:
    """Return attention between words: the sum over the tokens of a source word, the mean over those of a target word.

    A row that sums to 1 over tokens also does over words, minus the attention on tokens of no word, such as END.

    Args:
        weights: (target tokens, source tokens), of one sentence; END may be the last of either.
        target_words: for each target token the number of its word, -1 for none; END may be left out.
        source_words: the same for source tokens.
        target_count: number of target words; None for as many as are numbered.
        source_count: the same for source words.

    Returns:
        (target words, source words). A target word without tokens has a row of 0.

    Raises:
        RegardError: if the numbers do not fit the weights.

    >>> merge_to_words(torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]]), [0, 0], [0, 0, 1])
    tensor([[0.6250, 0.3750]])
    """
    if weights.ndim != 2:
        raise RegardError(
            "weights",
            got=describe(weights),
            needed="(target tokens, source tokens), of one sentence",
            repair="Take one sentence of the batch, cut to its lengths.",
        )
    target = _membership("target_words", target_words, weights.shape[0], target_count, weights)
    source = _membership("source_words", source_words, weights.shape[1], source_count, weights)
    tokens_of_each = target.sum(0).clamp(min=1)[:, None]
    return target.T @ weights @ source / tokens_of_each


def _membership(argument: str, words: Sequence[int], tokens: int, count: int | None, like: Tensor) -> Tensor:
    """Return (tokens, words), 1 where the token is part of the word."""
    if len(words) not in (tokens, tokens - 1):
        raise RegardError(
            argument,
            got=f"words of {len(words)} tokens",
            needed=f"{tokens}, as many as weights has, or {tokens - 1} where END is the last",
            repair="Number the word of each token, -1 for none.",
        )
    numbers = torch.tensor([*words, *[-1] * (tokens - len(words))], dtype=torch.int64, device=like.device)
    highest = max(words, default=-1)
    count = highest + 1 if count is None else count
    if highest >= count or min(words, default=0) < -1:
        raise RegardError(
            argument,
            got=f"numbers from {min(words)} to {highest}",
            needed=f"numbers from -1 to {count - 1}, for {count} words",
            repair="Number words from 0; -1 is a token of no word.",
        )
    return (numbers[:, None] == torch.arange(count, device=like.device)).to(like.dtype)


# --- Lines of text and pictures ---------------------------------------------------------------------------------------


def to_pharaoh(alignment: Alignment, threshold: float = 0.25) -> str:
    """Return links as "0-0 2-1": source word, target word, from 0, in the order of the target, as fast_align does.

    Args:
        alignment: the alignment.
        threshold: minimum weight of a link; see `Alignment.links`.

    >>> to_pharaoh(Alignment(("a", "b"), ("c", "d"), torch.tensor([[0.1, 0.9], [0.6, 0.2]])))
    '1-0 0-1'
    """
    return " ".join(f"{source}-{target}" for source, target in alignment.links(threshold))


def to_json(alignment: Alignment) -> str:
    """Return one object on one line: source, target (words), weights (a list for each target word), unaligned.

    Weights are rounded to four digits.
    """
    line = {
        "source": alignment.source_words,
        "target": alignment.target_words,
        "weights": [[round(weight, DIGITS) for weight in row] for row in alignment.weights.tolist()],
        "unaligned": [round(mass, DIGITS) for mass in alignment.unaligned.tolist()],
    }
    return json.dumps(line, ensure_ascii=False)


def save_alignment(alignment: Alignment, path: Path | str) -> Path:
    """Write the picture of an alignment.

    Words may be of any script; a font that is missing is named in a warning. In an SVG words stay text.

    Args:
        alignment: the alignment.
        path: a file ending in .svg, .png or .pdf.

    Returns:
        The path.

    Raises:
        RegardError: for another ending, or an alignment without words.
    """
    check_format(path)
    return save_as(plot_alignment(alignment), path)


def plot_alignment(alignment: Alignment) -> Figure:
    """Return the figure: a row for each target word, a column for each source word and one for no word.

    The last column, ∅, is `unaligned`. White is 0 and the darkest colour 1, so that pictures can be compared.

    Raises:
        RegardError: if one of the sides has no words.
    """
    if not alignment.target_words or not alignment.source_words:
        raise RegardError(
            "alignment",
            got=f"{len(alignment.target_words)} target words and {len(alignment.source_words)} source words",
            needed="at least one of each",
            repair="There is nothing to draw for an empty sentence.",
        )
    figure = heatmap_apart(
        torch.cat((alignment.weights, alignment.unaligned[:, None]), 1),
        queries=alignment.target_words,
        keys=(*alignment.source_words, NO_WORD),
        names=("target", "source"),
        darkest=1.0,
    )
    figure.axes[0].axvline(len(alignment.source_words) - 0.5, color="0.6", linewidth=0.8)
    return figure


# --- Measures ---------------------------------------------------------------------------------------------------------


def normalized_entropy(weights: Tensor) -> float:
    """Return the mean over target tokens of entropy / log(source tokens): 1 is uniform, 0 is one token alone.

    NaN for a source of one token, whose attention can only be 1.

    Args:
        weights: (target, source), of one sentence.

    Raises:
        RegardError: if the weights have another rank.

    >>> round(normalized_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])), 3)
    0.5
    """
    if weights.ndim != 2:
        raise RegardError(
            "weights",
            got=describe(weights),
            needed="(target, source), of one sentence",
            repair="Take one sentence of the batch, and one head or the mean over heads.",
        )
    table = weights.detach().double()
    target, source = table.shape
    if target == 0 or source < 2:
        return float("nan")
    return float(torch.special.entr(table).sum(-1).mean() / torch.tensor(source, dtype=torch.float64).log())


@dataclass(frozen=True)
class SpanAttention:
    """Attention on the right characters, summed over target tokens; add two to pool their sentences.

    Attributes:
        mass: the sum over these tokens of the attention of each on the right source tokens.
        tokens: number of target tokens that have a counterpart in the source.

    >>> (SpanAttention(0.9, 1) + SpanAttention(2.1, 3)).share
    0.75
    """

    mass: float
    tokens: int

    @property
    def share(self) -> float:
        """The mean over tokens; NaN without tokens."""
        return self.mass / self.tokens if self.tokens else float("nan")

    def __add__(self, other: SpanAttention) -> SpanAttention:
        return SpanAttention(self.mass + other.mass, self.tokens + other.tokens)


def span_attention(
    weights: Tensor, target_spans: Sequence[CharRange], source_spans: Sequence[CharRange], truth: Sequence[Span]
) -> SpanAttention:
    """Return the attention of target tokens on the source tokens that say the same.

    A target token counts if its characters overlap the target of a true span. The right source tokens for it are
    those whose characters overlap the source of such a span.

    Args:
        weights: (target tokens, source tokens), of one sentence; END may be the last of either.
        target_spans: for each target token its characters; END left out, or empty.
        source_spans: the same for source tokens.
        truth: the true alignment.

    Raises:
        RegardError: if the spans do not fit the weights.
    """
    _check_tokens(weights, target_spans, source_spans)
    target = _overlaps(target_spans, [[span.target] for span in truth])
    source = _overlaps(source_spans, [span.source for span in truth])
    right = (target @ source.T) > 0  # (target tokens, source tokens)
    counted = target.any(1)
    given = weights[: len(target_spans), : len(source_spans)].detach().double().cpu()
    return SpanAttention(float((given * right)[counted].sum()), int(counted.sum()))


def corpus_span_attention(translations: Sequence[Translation], pairs: Sequence[Pair]) -> float | None:
    """Return the share of attention on the right characters, over all target tokens that a true span covers.

    Args:
        translations: the references, as `Translator.force` returns them.
        pairs: a pair with its true alignment for each of them.

    Returns:
        The share; None for a model without attention, and if no token is covered.
    """
    total = SpanAttention(0.0, 0)
    for translation, pair in zip(translations, pairs, strict=True):
        if translation.weights is not None:
            target = translation.target.vocabulary.spans(translation.target.text)
            source = translation.source.vocabulary.spans(translation.source.text)
            total += span_attention(translation.weights, target, source, pair.spans)
    return total.share if total.tokens else None


def _overlaps(tokens: Sequence[CharRange], spans: Sequence[Sequence[CharRange]]) -> Tensor:
    """Return float64 (tokens, spans): 1 where a token shares a character with one of the ranges of a span."""
    shared = [
        [any(max(start, first) < min(end, last) for first, last in ranges) for ranges in spans] for start, end in tokens
    ]
    return torch.tensor(shared, dtype=torch.float64).reshape(len(tokens), len(spans))


def _check_tokens(weights: Tensor, target_spans: Sequence[CharRange], source_spans: Sequence[CharRange]) -> None:
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
