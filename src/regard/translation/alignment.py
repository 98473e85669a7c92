"""Alignments: attention between words as records, lines of text, pictures and measures."""

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

    from regard.translation.dataset import Example, Span
    from regard.translation.translator import Translation

# A row of softmax weights exceeds 1 by its rounding, in half precision by some parts of a thousand.
MOST_MASS = 1.01


@dataclass(frozen=True, eq=False)
class Alignment:
    """Which source words each target word looked at.

    source_words, target_words: as they are to be read.
    weights: (target words, source words), not negative, on the CPU; a row sums to 1 less `unaligned`.
    """

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    weights: Tensor

    def __post_init__(self) -> None:
        needed = (len(self.target_words), len(self.source_words))
        if tuple(self.weights.shape) != needed:
            raise RegardError(
                "weights",
                got=describe(self.weights),
                needed=f"{needed}: a row for each target word, a column for each source word",
                repair="Use Alignment.from_tokens, which merges tokens and leaves END out.",
            )
        sums = self.weights.sum(1)
        if not bool(((self.weights >= 0).all(1) & (sums <= MOST_MASS)).all()):
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
            weights: (target tokens, source tokens), of one sentence; END may follow as the last of either.
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
        """(target words,): the mass that rests on no word, but on END or on tokens between words."""
        return (1 - self.weights.sum(1)).clamp(min=0)

    def links(self, threshold: float = 0.25) -> tuple[tuple[int, int], ...]:
        """(source word, target word): for each target word its heaviest source word, where it weighs that much.

        Of equal ones the first is taken. threshold: the least weight of a link.
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
    """Add up over the tokens of a source word, take the mean over the tokens of a target word.

    So a row that sums to 1 over tokens still does over words, less what rests on tokens of no word, END above all.

    Args:
        weights: (target tokens, source tokens), of one sentence; END may follow as the last of either.
        target_words: for each target token the number of its word, -1 for a token of no word; END left out or -1.
        source_words: the same for source tokens.
        target_count: how many target words there are; without it, as many as are numbered.
        source_count: the same for source words.

    Returns:
        (target words, source words). A target word without tokens has a row of 0.

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
    """(tokens, words), 1 where the token is part of the word."""
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


DIGITS = 4


def to_pharaoh(alignment: Alignment, threshold: float = 0.25) -> str:
    """Links as "0-0 2-1": source word, target word, from 0, in the order of the target, as fast_align writes them.

    threshold: the least weight of a link; a target word that looked nowhere as long has none.

    >>> import torch
    >>> to_pharaoh(Alignment(("a", "b"), ("c", "d"), torch.tensor([[0.1, 0.9], [0.6, 0.2]])))
    '1-0 0-1'
    """
    return " ".join(f"{source}-{target}" for source, target in alignment.links(threshold))


def to_json(alignment: Alignment) -> str:
    """One object on one line: source, target (words), weights (a list for each target word), unaligned.

    Weights are rounded to four digits.
    """
    line = {
        "source": alignment.source_words,
        "target": alignment.target_words,
        "weights": [[round(weight, DIGITS) for weight in row] for row in alignment.weights.tolist()],
        "unaligned": [round(mass, DIGITS) for mass in alignment.unaligned.tolist()],
    }
    return json.dumps(line, ensure_ascii=False)


NO_WORD = "∅"


def draw(alignment: Alignment, path: Path | str) -> Path:
    """Write the picture as .svg, .png or .pdf, as the path ends; return the path.

    Words may be of any script; a font that is missing is warned of by name. In an SVG words stay text.
    """
    check_format(path)
    return save_as(picture(alignment), path)


def picture(alignment: Alignment) -> Figure:
    """The figure, sized to its words: a row for each target word, a column for each source word and one for no word.

    The last column, ∅, is what `unaligned` says: the mass on the end of the sentence. White is 0 and the darkest 1,
    so that pictures compare.
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


# Weights of an untrained model are this flat or flatter, whatever its score; those of a useful one are far from it.
UNIFORM = 0.98


def flatness(weights: Tensor, source_lengths: Tensor | None = None, target_lengths: Tensor | None = None) -> float:
    """The mean over target tokens of entropy / log(source tokens): 1 is uniform, 0 is one token alone.

    Sources of one token are left out, since nothing can be said of them; NaN when there are no others.

    Args:
        weights: (target, source), or (batch, target, source) with padding that weighs 0.
        source_lengths: int64 (batch,), real source tokens; without it all are.
        target_lengths: int64 (batch,), real target tokens; without it all are.

    >>> round(flatness(torch.tensor([[0.5, 0.5], [1.0, 0.0]])), 3)
    0.5
    """
    if weights.ndim not in (2, 3):
        raise RegardError(
            "weights",
            got=describe(weights),
            needed="(target, source) or (batch, target, source)",
            repair="Take one head, or the mean over heads.",
        )
    table = weights.detach().double() if weights.ndim == 3 else weights.detach().double()[None]
    batch, target, source = table.shape
    sizes = _lengths("source_lengths", source_lengths, batch, source, table)
    steps = _lengths("target_lengths", target_lengths, batch, target, table)
    entropy = torch.special.entr(table).sum(-1) / sizes.log()[:, None]  # (batch, target)
    counted = (torch.arange(target, device=table.device) < steps[:, None]) & (sizes > 1)[:, None]
    return float(entropy[counted].mean()) if bool(counted.any()) else float("nan")


def _lengths(argument: str, lengths: Tensor | None, batch: int, most: int, like: Tensor) -> Tensor:
    """float64 (batch,)."""
    if lengths is None:
        return like.new_full((batch,), float(most))
    if lengths.shape != (batch,):
        raise RegardError(
            argument,
            got=describe(lengths),
            needed=f"one length for each of {batch} sentences",
            repair="Pass them beside weights of (batch, target, source).",
        )
    return lengths.to(like)


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


def attention_on_spans(given: Sequence[Translation], examples: Sequence[Example]) -> float | None:
    """The share of attention mass on the right characters, over all target tokens that the truth explains.

    given: the references as the model reads them, one for each example; None where it has no attention.
    """
    found = SpanMass(0.0, 0)
    for one, example in zip(given, examples, strict=True):
        if one.weights is not None:
            target = one.target.vocabulary.spans(one.target.text)
            source = one.source.vocabulary.spans(one.source.text)
            found += mass_on_spans(one.weights, target, source, example.spans)
    return found.share if found.tokens else None
