"""Attention between tokens as attention between words."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError


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
