"""The experiment as a table for the terminal: what each kernel's error is, and what a common width makes of it."""

from torch import Tensor

from regard.regression.experiment.comparison import Comparison, interval
from regard.regression.experiment.data import PLACES, SAMPLES
from regard.regression.experiment.names import title
from regard.regression.experiment.norms import Dropped

LEADER = "gaussian"


def tell(comparison: Comparison, dropped: Dropped) -> str:
    """Errors by kernel, what they mean, and the cost of dropping the norms."""
    filled = sum(row.filled for row in comparison.at_own.values())
    places = PLACES * len(comparison.constant) * len(comparison.at_own)
    return "\n".join(
        [
            f"y = 2 sin(x) + x + N(0, 1), {SAMPLES} samples on [0, 4], {len(comparison.constant)} draws.",
            f"Mean squared error against the noiseless curve on {PLACES} places, with its 95% interval.",
            "",
            f"{'kernel':<14}{'at width 1':>16}{'at its own width':>20}{'minus gaussian':>18}{'median width':>14}",
            *(_row(comparison, kernel) for kernel in comparison.at_one),
            f"{'constant':<14}{_with_interval(comparison.constant):>16}    the mean of y, whatever the width",
            "",
            "Own width: leave-one-out, in each draw anew. The differences are paired, draw by draw.",
            *_lesson(comparison),
            "The kernel that the chapter calls Epanechnikov is the triangular one.",
            f"{filled} of {places} places had no sample in their window and took the nearest one's y.",
            "",
            f"softmax(-|q-k|^2) and softmax(2 q'k - |k|^2) differ by {dropped.exact:.0e}: rounding.",
            "Share of weight moved to other keys where the norms are dropped:",
            f"{'sd of |k|^2':>14}  {'eq. 7: 2 q.k':>14}{'eq. 8: q.k':>14}{'q.k for eq. 5':>16}",
            *_norms(dropped),
            "",
        ]
    )


def _row(comparison: Comparison, kernel: str) -> str:
    own = comparison.at_own[kernel]
    difference = "" if kernel == LEADER else _with_interval(own.errors - comparison.at_own[LEADER].errors, sign="+")
    return (
        f"{title(kernel):<14}{_with_interval(comparison.at_one[kernel].errors):>16}{_with_interval(own.errors):>20}"
        f"{difference:>18}{float(own.widths.median()):>14.2f}"
    )


def _lesson(comparison: Comparison) -> list[str]:
    """How many times the worst kernel's error is the best one's, at a common width and at each one's own."""
    factors = []
    for judged in (comparison.at_one, comparison.at_own):
        means = [interval(row.errors).mean for row in judged.values()]
        factors.append(max(means) / min(means))
    return [
        f"At width 1 the worst kernel has {factors[0]:.1f} times the error of the best, at its own width "
        f"{factors[1]:.2f} times:",
        "a common width ranks how much each kernel smooths at that width, not the kernels.",
    ]


def _norms(dropped: Dropped) -> list[str]:
    columns = [dropped.spreads, *dropped.by_spread.values()]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [f"{row[0]:>14.2f}  {row[1]:>14.3f}{row[2]:>14.3f}{row[3]:>16.3f}" for row in list(rows)[::3]]


def _with_interval(numbers: Tensor, sign: str = "") -> str:
    found = interval(numbers)
    return f"{found.mean:{sign}.4f} ± {found.half:.4f}"
