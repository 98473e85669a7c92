"""Words as vectors, made by hand: what a word says, and where it stands (the score laboratory's queries and keys).

A token is [word | place | 1]. The word part is drawn from the word's own letters, so that equal words have equal
vectors; its entries have variance 1, as those of eq. 8 do. The place part has pairs of sine and cosine at evenly spaced
frequencies, so that up to `dim` places are orthogonal, and a step along the sentence is a rotation: a matrix.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.studio.limits import MOST_LETTERS, MOST_WORDS


def split(argument: str, text: str) -> list[str]:
    """The words of a sentence, within the limits."""
    found = text.split()
    if not found or len(found) > MOST_WORDS:
        raise RegardError(
            argument, got=f"{len(found)} words", needed=f"1 to {MOST_WORDS} words", repair="Shorten the sentence."
        )
    longest = max(found, key=len)
    if len(longest) > MOST_LETTERS:
        raise RegardError(
            argument,
            got=f"a word of {len(longest)} letters",
            needed=f"words of at most {MOST_LETTERS}",
            repair="Put blanks between the words.",
        )
    return found


def tokens(words: Sequence[str], dim: int, spread: float) -> Tensor:
    """(words, 2 dim + 1), float64.

    spread: how much the words' norms differ: each is multiplied by exp(spread z), z drawn with the word; 0 makes them
    all equal.
    """
    said = torch.stack([_word(word, dim, spread) for word in words])
    place = torch.arange(len(words), dtype=torch.float64)[:, None] * _frequencies(dim)
    return torch.cat([said, place.cos(), place.sin(), torch.ones(len(words), 1, dtype=torch.float64)], -1)


def word_part(dim: int) -> Tensor:
    """(dim, 2 dim + 1): what picks the word out of a token."""
    return torch.eye(dim, 2 * dim + 1, dtype=torch.float64)


def place_part(dim: int, steps: int = 0) -> Tensor:
    """(dim, 2 dim + 1): what picks out the place, moved by so many steps along the sentence, times sqrt 2.

    The factor gives places the norm of words, sqrt(dim).
    """
    half = dim // 2
    turn = _frequencies(dim) * steps
    rotation = torch.zeros(dim, 2 * dim + 1, dtype=torch.float64)
    cosine, sine = turn.cos().diag(), turn.sin().diag()
    rotation[:half, dim : dim + half], rotation[:half, dim + half : 2 * dim] = cosine, -sine
    rotation[half:, dim : dim + half], rotation[half:, dim + half : 2 * dim] = sine, cosine
    return math.sqrt(2) * rotation


def _word(word: str, dim: int, spread: float) -> Tensor:
    """(dim,): of norm sqrt(dim) where the spread is 0."""
    seed = int.from_bytes(hashlib.sha256(word.casefold().encode()).digest()[:7], "big")
    generator = torch.Generator().manual_seed(seed)
    loudness = torch.randn((), generator=generator, dtype=torch.float64)
    direction = torch.randn(dim, generator=generator, dtype=torch.float64)
    return direction / direction.norm() * math.sqrt(dim) * (spread * loudness).exp()


def _frequencies(dim: int) -> Tensor:
    """(dim / 2,): evenly spaced in (0, pi), so that sum_k cos(w_k d) = 0 for every whole d from 1 below dim."""
    half = dim // 2
    return math.pi * (torch.arange(half, dtype=torch.float64) + 0.5) / half
