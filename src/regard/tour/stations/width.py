"""Station 2: the width of a kernel, and kernels compared at one width and at their own (eq. 4 and 5)."""

import math

from regard.regression.experiment import Experiment, compute, figures
from regard.regression.experiment.comparison import Comparison, Judged, interval
from regard.regression.experiment.names import title
from regard.scores.names import KERNEL_SCORES
from regard.tour.budget import Budget
from regard.tour.charts import Bar, Bars
from regard.tour.station import Station, Table, Tell

NARROWEST, WIDEST = 0.02, 5.0


def work(budget: Budget, tell: Tell) -> Experiment:
    """The chapter's experiment over many draws."""
    tell(0.0, f"{budget.draws} draws, {len(KERNEL_SCORES)} kernels")
    return compute(budget.draws)


def present(experiment: Experiment) -> Station:
    """Errors and intervals, and the leave-one-out widths of the shown draw."""
    comparison, shown = experiment.comparison, experiment.shown
    own = {kernel: pooled.width for kernel, pooled in shown.at_own.items()}
    best = own["gaussian"]
    worst = {name: _factor(table) for name, table in (("one", comparison.at_one), ("own", comparison.at_own))}
    beats = tuple(f"kernel=gaussian&width={math.log10(width):.3f}" for width in (NARROWEST, best, WIDEST))
    return Station(
        "width",
        "One number decides what the curve sees",
        facts={
            "loo": f"{best:.2f}",
            "draws": str(len(comparison.constant)),
            "factor.one": f"{worst['one']:.1f}",
            "factor.own": f"{worst['own']:.2f}",
            "low": f"{math.log10(NARROWEST):.3f}",
            "high": f"{math.log10(WIDEST):.3f}",
            "best": f"{math.log10(best):.3f}",
        },
        data={
            "own": own,
            "places": shown.places.tolist(),
            "truth": shown.truth.tolist(),
        },
        charts={"kernels": _chart(comparison)},
        tables=(
            Table(
                "kernels", ("kernel", "width", "median width", "mean error", "half of 95% interval"), _rows(experiment)
            ),
            Table("errors-by-width", ("kernel", "width", "mean error"), _followed(experiment)),
        ),
        figures={
            "widths": figures.draw_widths(shown),
            "fits": figures.draw_fits(shown),
            "kernel-errors": figures.draw_errors(comparison),
        },
        beats=(*beats, "kernel=boxcar&width=0.000", "kernel=epanechnikov&width=0.000"),
    )


def _chart(comparison: Comparison) -> Bars:
    """Two bars a kernel: at width 1, and at its own."""
    found = []
    for kernel in comparison.at_one:
        for table, kind in ((comparison.at_one, "c4"), (comparison.at_own, "c0")):
            mean, half = interval(table[kernel].errors)
            name = title(kernel) if kind == "c4" else ""
            found.append(Bar(name, mean, mean - half, mean + half, f"{mean:.3f} ± {half:.3f}", kind))
    keys = (("at width 1, as the chapter compares them", "c4"), ("each at its leave-one-out width", "c0"))
    return Bars(found, max(bar.high for bar in found), keys)


def _factor(table: dict[str, Judged]) -> float:
    """How many times the worst kernel's error is the best one's."""
    means = [interval(row.errors).mean for row in table.values()]
    return max(means) / min(means)


def _rows(experiment: Experiment) -> list[tuple[object, ...]]:
    tables = (("1", experiment.comparison.at_one), ("leave-one-out", experiment.comparison.at_own))
    return [
        (kernel, at, float(row.widths.median()), *interval(row.errors))
        for at, table in tables
        for kernel, row in table.items()
    ]


def _followed(experiment: Experiment) -> list[tuple[object, ...]]:
    return [
        (kernel, width, error)
        for kernel, (widths, errors) in experiment.comparison.followed.items()
        for width, error in zip(widths.tolist(), errors.tolist(), strict=True)
    ]
