"""Point 19 of the chapter, its gain: what additive and bilinear scores of equal size can learn to find.

A query and some keys are drawn, and one key is right by a hidden rule. The score is trained so that attention rests on
it. Queries and keys have different sizes, chosen so that q'Mk (eq. 10) and w' tanh(Wq q + Wk k) (eq. 12) have exactly
as many parameters. The last entry of every query and key is 1: without a constant eq. 12 is odd,
s(-q, -k) = -s(q, k), and no rule that treats (q, k) and (-q, -k) alike can be learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

import regard
from regard.scores import Additive, Bilinear
from regard.scores.base import Score
from regard.translation.lab.finding import Finding, Table, columns
from regard.translation.lab.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# query_dim key_dim = hidden_dim (query_dim + key_dim + 1): 216 parameters either way.
QUERY_DIM, KEY_DIM, HIDDEN_DIM = 8, 27, 6
WIDER = 8
KEYS, QUERIES, BATCH = 16, 8, 32
UPDATES, RATE, SEEDS = 600, 3e-2, 3
TESTED = 256  # batches of queries

Rule = Callable[[Tensor, Tensor], Tensor]
"""How well keys (batch, keys, key_dim) answer queries (batch, queries, query_dim): (batch, queries, keys)."""


@dataclass(frozen=True)
class Learnt:
    """One score on one rule, with one seed. found: the share of unseen queries that rest most on the right key."""

    rule: str
    score: str
    parameters: int
    seed: int
    found: float


@dataclass(frozen=True)
class Expressiveness(Finding):
    """What each score finds under each rule; `chance` is what guessing finds."""

    name: ClassVar[str] = "expressiveness"

    rows: tuple[Learnt, ...]
    query_dim: int
    key_dim: int
    chance: float

    def found(self) -> dict[tuple[str, str], tuple[int, Interval]]:
        """By rule and score: parameters, and the share found, over seeds."""
        groups: dict[tuple[str, str], list[Learnt]] = {}
        for row in self.rows:
            groups.setdefault((row.rule, row.score), []).append(row)
        return {name: (rows[0].parameters, Interval.of([row.found for row in rows])) for name, rows in groups.items()}

    def __str__(self) -> str:
        found = self.found()
        rules = tuple(dict.fromkeys(rule for rule, _ in found))
        lines = [("score", "parameters", *(f"{rule}, found %" for rule in rules))]
        for score in dict.fromkeys(score for _, score in found):
            cells = [found[rule, score] for rule in rules]
            lines.append((score, str(cells[0][0]), *(interval.text(1, 100) for _, interval in cells)))
        note = (
            f"Queries of size {self.query_dim}, keys of size {self.key_dim}, {round(1 / self.chance)} keys; chance "
            f"finds {100 * self.chance:.1f}%."
        )
        return f"{columns(lines)}\n  {note}"

    def table(self) -> Table:
        """A row for each rule, score and seed."""
        return Table(tuple(Learnt.__dataclass_fields__), tuple(tuple(asdict(row).values()) for row in self.rows))

    def to_dict(self) -> dict[str, Any]:
        """Everything that was measured."""
        return asdict(self)

    def draw(self) -> Figure:
        """A panel for each rule, a bar for each score."""
        from regard.translation.lab.figures.expressiveness import draw_expressiveness

        return draw_expressiveness(self)


def measure_expressiveness(seeds: int = SEEDS, updates: int = UPDATES) -> Expressiveness:
    """Train every score under both rules, with every seed."""
    makers: dict[str, Callable[[], Score]] = {
        "bilinear": lambda: Bilinear(QUERY_DIM, KEY_DIM),
        "additive": lambda: Additive(QUERY_DIM, KEY_DIM, HIDDEN_DIM),
        f"additive, {WIDER} x as wide": lambda: Additive(QUERY_DIM, KEY_DIM, WIDER * HIDDEN_DIM),
    }
    rows = []
    for rule_name, make_rule in (("bilinear rule", bilinear_rule), ("nearest rule", nearest_rule)):
        for score_name, make in makers.items():
            for seed in range(1, seeds + 1):
                generator = torch.Generator().manual_seed(seed)
                rule = make_rule(generator)
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    score = make()
                found = learn(score, rule, generator, updates)
                count = sum(parameter.numel() for parameter in score.parameters())
                rows.append(Learnt(rule_name, score_name, count, seed, found))
    return Expressiveness(tuple(rows), QUERY_DIM, KEY_DIM, 1 / KEYS)


def bilinear_rule(generator: torch.Generator) -> Rule:
    """The right key has the largest q'Mk, for a matrix of full rank."""
    matrix = torch.randn(QUERY_DIM - 1, KEY_DIM - 1, generator=generator)
    return lambda query, key: query[..., :-1] @ matrix @ key[..., :-1].mT


def nearest_rule(generator: torch.Generator) -> Rule:
    """The right key is the one whose b'k is nearest to a'q: along two directions, and not bilinear."""
    a, b = (torch.randn(dim - 1, generator=generator) for dim in (QUERY_DIM, KEY_DIM))
    a, b = a / a.norm(), b / b.norm()
    return lambda query, key: -((query[..., :-1] @ a)[..., None] - (key[..., :-1] @ b)[..., None, :]).square()


def learn(score: Score, rule: Rule, generator: torch.Generator, updates: int) -> float:
    """Train attention to rest on the right key; the share of unseen queries for which it does."""
    optimiser = torch.optim.Adam(score.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates)
    for _ in range(updates):
        scores, right = _ask(score, rule, BATCH, generator)
        loss = functional.cross_entropy(scores, right)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        scores, right = _ask(score, rule, TESTED, generator)
    return float((scores.argmax(-1) == right).double().mean())


def _ask(score: Score, rule: Rule, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """New queries and keys: the scores (batch queries, keys), whose softmax are the weights, and the right keys."""
    query, key = (_draw((batch, *size), generator) for size in ((QUERIES, QUERY_DIM), (KEYS, KEY_DIM)))
    scores = regard.inspect(query, key, key, score=score).scores()
    return scores.flatten(0, 1), rule(query, key).argmax(-1).flatten()


def _draw(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    drawn = torch.randn(*shape, generator=generator)
    drawn[..., -1] = 1.0
    return drawn
