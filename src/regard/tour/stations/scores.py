"""Station 5: the scores side by side: what each can do, what it costs, what it has to learn (eq. 8, 10 and 12)."""

from typing import Any

from regard.experiments.comparison import Standing
from regard.experiments.costs import ScoreCost, ScoreCosts, measure_score_costs
from regard.experiments.result import Interval
from regard.experiments.scores import Expressiveness, measure_expressiveness
from regard.experiments.variants import NONE
from regard.tour.budget import Budget
from regard.tour.charts import Bar, Bars
from regard.tour.results.laboratory import compared
from regard.tour.station import Station, Table, Tell

MEGA = 2**20
RULES = (("right key = largest q′Mk", "c0"), ("right key = nearest along two directions", "c1"))


def work(budget: Budget, tell: Tell) -> Expressiveness:
    """Rules that one score can learn and the other cannot."""
    tell(0.0, f"{budget.seeds} seeds")
    return measure_expressiveness(budget.seeds, budget.rule_updates)


def cost() -> ScoreCosts:
    """Measured on this machine, which should do nothing else meanwhile."""
    return measure_score_costs()


def present(costs: ScoreCosts, learnt: Expressiveness) -> Station:
    """One row a score, and what additive and bilinear scores of equal size find."""
    comparison = compared("lab-comparison")
    standings = {one.competitor: one for one in comparison.standings}
    lists = sum(group.count for group in comparison.trials[0].by_length)
    facts = {
        "seeds": str(comparison.seeds),
        "lists": f"{lists:,}",
        "rule_seeds": str(len({r.seed for r in learnt.rows})),
    }
    facts |= {"none": standings[NONE].exact.text(1, 100), **_sizes(costs)}
    for cost in costs.scores:
        facts |= _row(cost, standings[cost.competitor])
    return Station(
        "scores",
        "The scores side by side",
        facts=facts,
        data={"scores": [_drawn(cost, standings[cost.competitor]) for cost in costs.scores]},
        charts={"rules": _chart(learnt)},
        tables=(
            Table(
                "scores",
                ("score", "parameters", "queries per second", "bytes", "exact", "half of 95% interval"),
                [
                    (*row, *_ends(standings[c.competitor].exact)[:2])
                    for row, c in zip(costs.table().rows, costs.scores, strict=True)
                ],
            ),
            Table("rules", *learnt.table()),
        ),
        figures={"score-costs": costs.draw(), "rules": learnt.draw(), "scores-by-length": comparison.draw()},
        beats=("measure=exact", "measure=speed", "measure=memory", "measure=parameters"),
    )


def _sizes(costs: ScoreCosts) -> dict[str, str]:
    return {
        "sizes": ", ".join(f"{name} {size}" for name, size in costs.sizes.items()),
        "threads": f"{costs.threads} thread{'s' * (costs.threads > 1)}",
    }


def _row(cost: ScoreCost, standing: Standing) -> dict[str, str]:
    """The cells of one score's row, by names that its fragment uses."""
    name = cost.competitor.folder
    return {
        f"{name}.parameters": f"{cost.parameters:,}",
        f"{name}.speed": f"{cost.speed / 1000:,.0f}",
        f"{name}.memory": f"{cost.bytes / MEGA:.1f}",
        f"{name}.exact": standing.exact.text(1, 100),
    }


def _drawn(cost: ScoreCost, standing: Standing) -> dict[str, Any]:
    return {
        "name": str(cost.competitor),
        "exact": _bar(100 * standing.exact.mean, 100 * (standing.exact.half or 0.0), standing.exact.text(1, 100)),
        "speed": _bar(cost.speed / 1000, 0.0, f"{cost.speed / 1000:,.0f}"),
        "memory": _bar(cost.bytes / MEGA, 0.0, f"{cost.bytes / MEGA:.1f}"),
        "parameters": _bar(cost.parameters, 0.0, f"{cost.parameters:,}"),
    }


def _bar(value: float, half: float, text: str) -> list[object]:
    """Value, ends of the interval and words, as the page's script takes them."""
    return [value, value - half, value + half, text]


def _chart(learnt: Expressiveness) -> Bars:
    """Two bars a score, one for each rule."""
    rules = list(dict.fromkeys(row.rule for row in learnt.rows))
    found = []
    for score in dict.fromkeys(row.score for row in learnt.rows):
        for place, rule in enumerate(rules):
            _, share = learnt.found()[rule, score]
            half = share.half or 0.0
            name = score.replace(" x as wide", "×") if place == 0 else ""
            bar = Bar(name, share.mean, share.mean - half, share.mean + half, share.text(1, 100) + "%", f"c{place}")
            found.append(bar)
    return Bars(found, 1.0, RULES)


def _ends(found: Interval) -> list[float]:
    return [found.mean, found.half or 0.0]
