"""Four heads whose matrices are made by hand, so that each has a known task, under any score of the library."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention import Attended, inspect
from regard.scores import Additive, Bilinear, Cosine, Score
from regard.scores.names import NAMED_SCORES, SIZED_SCORES, score_by_name
from regard.studio.words import place_part, word_part

SCORES = (*NAMED_SCORES, *SIZED_SCORES)


@dataclass(frozen=True)
class Task:
    """What a head is to look for: the same word, or the word so many steps away (None for the former)."""

    title: str
    steps: int | None


TASKS = (Task("same word", None), Task("word before", -1), Task("word after", 1), Task("own place", 0))


def right_keys(task: Task, queries: list[str], keys: list[str]) -> list[list[int]]:
    """For each query the keys that its head should find; none where the sentence ends.

    >>> right_keys(TASKS[1], ["a", "b"], ["a", "b"])
    [[], [0]]
    """
    if task.steps is None:
        return [[j for j, key in enumerate(keys) if key.casefold() == query.casefold()] for query in queries]
    found = [place + task.steps for place in range(len(queries))]
    return [[place] if 0 <= place < len(keys) else [] for place in found]


class Heads:
    """Queries and keys of four heads, (heads, words, dim), ready for any score.

    query, key: tokens, (words, 2 dim + 1). width: both are divided by it, so that it is the bandwidth of every
    kernel, and the square root of a dot product's temperature.
    """

    def __init__(self, query: Tensor, key: Tensor, dim: int, width: float) -> None:
        self.dim = dim
        ask = torch.stack([_ask(task, dim) for task in TASKS])
        answer = torch.stack([word_part(dim) if task.steps is None else place_part(dim) for task in TASKS])
        self.matrix = ask.mT @ answer  # (heads, 2 dim + 1, 2 dim + 1): M of eq. 10
        self.tokens = query[None] / width, key[None] / width
        self.query, self.key = (part @ side.mT for part, side in zip(self.tokens, (ask, answer), strict=True))
        self.value = key[None, :, :dim].expand(len(TASKS), -1, -1).contiguous()
        self.width = width

    def attend(self, score: str, mask) -> Attended:
        """The pooling of every head under one score of the library.

        bilinear: on the tokens themselves, with M = Wq' Wk. additive: w' tanh(Wq q + Wk k) with +q - k and -q + k
        beside a constant, whose sum is largest where q = k.
        """
        if score == "bilinear":
            return inspect(*self.tokens, self.value, self._bilinear(), mask)
        if score == "additive":
            query = torch.cat([self.query + 1, 1 - self.query], -1)
            key = torch.cat([-self.key, self.key], -1)
            return inspect(query, key, self.value, self._additive(), mask)
        chosen: Score = Cosine(self.dim / self.width**2) if score == "cosine" else score_by_name(score)
        return inspect(self.query, self.key, self.value, chosen, mask)

    def _bilinear(self) -> Bilinear:
        size = self.matrix.shape[-1]
        score = Bilinear(size, size, heads=len(TASKS)).double().requires_grad_(False)
        score.matrix.copy_(self.matrix)
        return score

    def _additive(self) -> Additive:
        score = Additive.of_projected(2 * self.dim, len(TASKS)).double().requires_grad_(False)
        score.weight.fill_(1.0)
        return score


def _ask(task: Task, dim: int) -> Tensor:
    return word_part(dim) if task.steps is None else place_part(dim, task.steps)
