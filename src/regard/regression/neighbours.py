"""The search for a number of neighbours: a geometric scan of k, then the whole numbers around the best."""

import warnings
from dataclasses import replace

import numpy as np

from regard.regression.criteria import CRITERIA
from regard.regression.search import Found, Trials, check_counts, check_found, check_rows
from regard.regression.smoother import Nearest, Smoother
from regard.regression.warning_kinds import BandwidthWarning

GRID_RATIO = 1.25
AROUND = 12


def find_neighbours(smoother: Smoother, criterion: str, exclude: int, verbose: int = 0) -> Found:
    """The k with the smallest criterion, from 2 to the number of observations left when one is out.

    Every k costs all pairs of rows. Of equal values the largest k is taken.
    """
    check_rows(smoother.data, criterion)
    check_counts(smoother)
    most = max(int(smoother.total()) - 1, 2)
    values: dict[int, float] = {}
    alone: dict[int, int] = {}

    def judge(candidates: np.ndarray) -> int:
        for k in candidates.tolist():
            if k not in values:
                judgement = CRITERIA[criterion](replace(smoother, width=Nearest(k)), exclude)
                values[k], alone[k] = float(judgement.value), judgement.alone
                if verbose > 1:
                    print(f"[regard] {criterion} of {k} neighbours: {values[k]:.8g}")
        lowest = min(values.values())
        return max(k for k, value in values.items() if value <= lowest + 1e-12 * abs(lowest))

    steps = int(np.log(most / 2) / np.log(GRID_RATIO)) + 1
    best = judge(np.unique(np.geomspace(2, most, steps + 1).round().astype(int)))
    tried = sorted(values)
    place = tried.index(best)
    below, above = tried[max(place - 1, 0)], tried[min(place + 1, len(tried) - 1)]
    best = judge(np.unique(np.linspace(below, above, AROUND).round().astype(int)))
    check_found(criterion, values[best], len(smoother.data.key))
    if most > 2 and best in (2, most):
        warnings.warn(
            f"the criterion is smallest at the edge of what was tried, {best} neighbours",
            BandwidthWarning,
            stacklevel=2,
        )
    tried = sorted(values)
    trials = Trials(np.array(tried), np.array([values[k] for k in tried]))
    return Found(replace(smoother, width=Nearest(best)), values[best], alone[best], trials)
