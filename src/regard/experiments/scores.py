"""Two claims of the chapter: scaling keeps the softmax from saturating, and additive scores express more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

import regard
from regard import plots
from regard.experiments.result import Finding, Interval, Table, columns
from regard.plots.look import COLOURS, TRUTH
from regard.scores import Additive, Bilinear, Dot, ScaledDot
from regard.scores.base import Score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIMENSIONS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
QUERIES, KEYS, DRAWS = 256, 64, 8
SCORES: dict[str, type[Score]] = {"dot": Dot, "scaled dot": ScaledDot}
# A gradient below this is lost among those of other queries: at even weights it has a norm of about 1 / sqrt(keys).
VANISHED = 1e-3


@dataclass(frozen=True)
class Saturated:
    """One score in one dimension, over all queries of all draws.

    entropy: of the weights, as a share of the even one's; the mean.
    gradient: the norm of do / ds, its median, with its 10% and 90% quantiles `low` and `high`.
    vanished: the share of queries whose gradient is below `VANISHED`.
    by_query: the norm of do / dq, its median.
    """

    score: str
    dim: int
    entropy: float
    gradient: float
    low: float
    high: float
    vanished: float
    by_query: float


@dataclass(frozen=True)
class Saturation(Finding):
    """Entropy and gradients against the dimension."""

    name: ClassVar[str] = "saturation"

    rows: tuple[Saturated, ...]
    keys: int
    queries: int

    def of(self, score: str) -> list[Saturated]:
        """One score, in the order of dimensions."""
        return sorted((row for row in self.rows if row.score == score), key=lambda row: row.dim)

    def __str__(self) -> str:
        lines = [
            ("dimension", *(f"{what}, {score}" for what in ("entropy", "|do/ds|", "vanished") for score in SCORES))
        ]
        for one, other in zip(*(self.of(score) for score in SCORES), strict=True):
            cells = [f"{row.entropy:.3f}" for row in (one, other)]
            cells += [f"{row.gradient:.1e}" for row in (one, other)]
            cells += [f"{100 * row.vanished:.0f}%" for row in (one, other)]
            lines.append((str(one.dim), *cells))
        note = (
            f"  {self.queries} queries over {self.keys} keys, all N(0, 1). Entropy as a share of the even one; the "
            f"median norm of do/ds; the share of queries for which it is below {VANISHED:g}."
        )
        return f"{columns(lines)}\n{note}"

    def table(self) -> Table:
        """A row for each score and dimension."""
        return Table(tuple(Saturated.__dataclass_fields__), tuple(tuple(asdict(row).values()) for row in self.rows))

    def to_dict(self) -> dict[str, Any]:
        """Everything that was measured."""
        return asdict(self)

    def draw(self) -> Figure:
        """Three panels over the dimension: entropy, gradient, share of vanished gradients."""
        return draw_saturation(self)


def measure_saturation(dimensions: Sequence[int] = DIMENSIONS, draws: int = DRAWS, seed: int = 0) -> Saturation:
    """Draw queries, keys and values in every dimension; both scores see the same ones."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for dim in dimensions:
        query, key, value = (
            torch.randn(draws, count, width, generator=generator, dtype=torch.float64)
            for count, width in ((QUERIES, dim), (KEYS, dim), (KEYS, 1))
        )
        rows += [_measure(name, make(), query, key, value) for name, make in SCORES.items()]
    return Saturation(tuple(rows), KEYS, QUERIES * draws)


def _measure(name: str, score: Score, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Saturated:
    query = query.clone().requires_grad_()
    # A bias of 0 is added to the scores: its gradient is that of the scores.
    bias = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=query.dtype, requires_grad=True)
    record = regard.inspect(query, key, value, score=score, bias=bias)
    weights = record.weights().detach()
    entropy = torch.special.entr(weights).sum(-1).mean() / torch.log(torch.tensor(float(key.shape[-2])))
    by_score, by_query = torch.autograd.grad(record.output.sum(), (bias, query))
    norms = by_score.norm(dim=-1).flatten()
    low, median, high = norms.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=norms.dtype)).tolist()
    return Saturated(
        score=name,
        dim=query.shape[-1],
        entropy=float(entropy),
        gradient=median,
        low=low,
        high=high,
        vanished=float((norms < VANISHED).double().mean()),
        by_query=float(by_query.norm(dim=-1).median()),
    )


def draw_saturation(found: Saturation) -> Figure:
    """Left: mean entropy. Middle: median gradient, the band from its 10% to its 90% quantile. Right: vanished ones."""
    figure, panels = plots.canvas(7.2, 2.7, panels=3)
    entropy, gradient, vanished = panels
    with plots.house_style():
        for score, colour, marker in zip(SCORES, COLOURS[1::-1], "os", strict=True):
            rows = found.of(score)
            dims = [row.dim for row in rows]
            style = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.3, "label": score}
            entropy.plot(dims, [row.entropy for row in rows], **style)
            gradient.plot(dims, [row.gradient for row in rows], **style)
            gradient.fill_between(
                dims, [row.low for row in rows], [row.high for row in rows], color=colour, alpha=0.18, linewidth=0
            )
            vanished.plot(dims, [100 * row.vanished for row in rows], clip_on=False, **style)
        for ax in panels:
            ax.set(xscale="log", xlabel="dimension D")
            ax.set_xticks([2, 8, 32, 128, 512], ["2", "8", "32", "128", "512"])
            ax.minorticks_off()
        entropy.set(title="entropy / log keys", ylim=(0, 1))
        gradient.set(title="|∂o/∂s|, median, 80% band", yscale="log", ylim=(1e-6, 2))
        vanished.set(title=f"|∂o/∂s| < {VANISHED:g}, % of queries", ylim=(0, 100))
        vanished.legend(loc="upper left")
    return figure


# query_dim key_dim = hidden_dim (query_dim + key_dim + 1): 216 parameters either way.
QUERY_DIM, KEY_DIM, HIDDEN_DIM = 8, 27, 6
WIDER = 8
RULE_KEYS, RULE_QUERIES, BATCH = 16, 8, 32
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
    return Expressiveness(tuple(rows), QUERY_DIM, KEY_DIM, 1 / RULE_KEYS)


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
    query, key = (_draw((batch, *size), generator) for size in ((RULE_QUERIES, QUERY_DIM), (RULE_KEYS, KEY_DIM)))
    scores = regard.inspect(query, key, key, score=score).scores()
    return scores.flatten(0, 1), rule(query, key).argmax(-1).flatten()


def _draw(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    drawn = torch.randn(*shape, generator=generator)
    drawn[..., -1] = 1.0
    return drawn


# The wider additive score is a lighter one.
SCORE_COLOURS = (COLOURS[0], COLOURS[1], COLOURS[4])


def draw_expressiveness(measured: Expressiveness) -> Figure:
    """A panel for each rule: bars with the range over seeds; the dotted line is chance."""
    found = measured.found()
    rules = list(dict.fromkeys(rule for rule, _ in found))
    figure, panels = plots.canvas(7.2, 1.9, panels=len(rules), same_scales=True)
    with plots.house_style():
        for ax, rule in zip(panels, rules, strict=True):
            rows = {score: cell for (its_rule, score), cell in found.items() if its_rule == rule}
            for height, ((_, interval), colour) in enumerate(zip(rows.values(), SCORE_COLOURS, strict=True)):
                ax.barh(height, 100 * interval.mean, height=0.6, color=colour)
                ax.plot([100 * interval.lowest, 100 * interval.highest], [height] * 2, color=TRUTH, linewidth=1.0)
                ax.text(100 * interval.highest + 2, height, f"{100 * interval.mean:.0f}", va="center", fontsize=8)
            ax.axvline(100 * measured.chance, color=TRUTH, linewidth=0.8, linestyle=":")
            labels = [f"{score}\n{count} parameters" for score, (count, _) in rows.items()]
            ax.set_yticks(range(len(rows)), labels)
            ax.set(title=rule, xlim=(0, 110), ylim=(len(rows) - 0.5, -0.5), xlabel="right key found, %")
            ax.set_xticks(range(0, 101, 20))
    return figure
