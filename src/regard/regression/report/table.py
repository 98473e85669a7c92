"""The fit of a file as a small table for the terminal."""

import numpy as np

from regard.regression.report.fitted import Fitted
from regard.regression.report.wishes import Wishes


def tell(wishes: Wishes, fitted: Fitted) -> str:
    """One line for each thing that a reader asks of a regression."""
    model = fitted.model
    rows = f"{len(fitted.y)}"
    if fitted.dropped:
        rows += f", and {fitted.dropped} left out since a number was missing"
    lines = [
        ("regression", f"{wishes.y} on {', '.join(wishes.x)}, local {'lines' if wishes.degree else 'means'}"),
        ("rows", rows),
        ("kernel", wishes.kernel),
        ("bandwidth", _width(model.bandwidth_)),
        ("criterion", _criterion(wishes, fitted)),
        ("effective degrees of freedom", f"{model.effective_degrees_of_freedom_:.2f}"),
        ("AICc", f"{model.aicc_:.5g}"),
        ("leave-one-out error", f"{fitted.left_out_error:.6g} (mean squared)"),
        ("R²", f"{fitted.r2:.4f} of the rows themselves, {fitted.left_out_r2:.4f} left out one by one"),
        ("rows alone in their window", f"{fitted.alone}"),
    ]
    return "\n".join(f"{name:<30}{finding}" for name, finding in lines)


def _width(width: object) -> str:
    """As a reader wants it: six digits, per dimension, or the number of neighbours."""
    if isinstance(width, float | np.ndarray):
        return ", ".join(f"{number:.6g}" for number in np.atleast_1d(width).tolist())
    return f"to the nearest {getattr(width, 'k', width)} rows, at each place anew"


def _criterion(wishes: Wishes, fitted: Fitted) -> str:
    if fitted.model.criterion_ is None:
        return f"none: the bandwidth was {'a rule' if wishes.bandwidth.isalpha() else 'given'}"
    return f"{wishes.bandwidth.rpartition(':')[2]}, {fitted.model.criterion_:.6g} at this bandwidth"
