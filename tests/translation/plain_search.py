"""Beam search as its docstring tells it, one sentence and one beam at a time: the judge of the vectorised one."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from regard.translation.vocabulary import END


class Found(NamedTuple):
    tokens: tuple[int, ...]
    score: float
    total: float
    finished: bool


def divisor(length: int, strength: float) -> float:
    return ((5 + length) / 6) ** strength


def search(table, sentence, *, beams, nbest, strength, longest, shortest=0, forbidden=()) -> list[Found]:
    """Proposals by (total, -token, -beam); END keeps its place; no early stop."""
    live, finished = [((), 0.0)], []
    for length in range(1, longest + 1):
        proposals = [
            (-(total + min(0.0, word)), token, number, prefix)
            for number, (prefix, total) in enumerate(live)
            for token, word in enumerate(words_after(table, sentence, prefix))
            if token not in forbidden and not (token == END and length < shortest) and word > -float("inf")
        ]
        accepted = sorted(proposals)[: beams - len(finished)]
        live = []
        for cost, token, _, prefix in accepted:
            if token == END:
                finished.append(Found(prefix, -cost / divisor(length, strength), -cost, True))
            else:
                live.append(((*prefix, token), -cost))
    ranked = sorted(finished, key=lambda found: -found.score)  # stable: of equal ones the first to finish
    cut = [Found(prefix, total / divisor(longest, strength), total, False) for prefix, total in live]
    return (ranked + cut)[:nbest]


def everything(table, sentence, *, strength, longest, forbidden=()) -> list[Found]:
    """Every sentence there is, finished ones by score, then the unfinished: no search at all."""
    words = [word for word in range(table.vocabulary) if word != END and word not in forbidden]
    finished, cut = [], []
    for size in range(longest + 1):
        for tokens in product(words, repeat=size):
            whole = (*tokens, END) if size < longest else tokens
            total = 0.0
            for position, token in enumerate(whole):
                total += words_after(table, sentence, whole[:position])[token]
            found = Found(tokens, total / divisor(len(whole), strength), total, size < longest)
            (finished if found.finished else cut).append(found)
    return [*sorted(finished, key=lambda found: -found.score), *sorted(cut, key=lambda found: -found.score)]


def words_after(table, sentence, prefix) -> list[float]:
    number = 0
    for token in prefix:
        number = number * table.vocabulary + token
    return table.log_probabilities[sentence, len(prefix), number].tolist()
