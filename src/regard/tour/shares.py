"""Shares with their uncertainty: Wilson's 95% interval, which stays inside 0 and 1."""

import math
from typing import NamedTuple

from regard.regression.inference import quantile

QUANTILE = quantile(0.95)


class Share(NamedTuple):
    """How many of how many.

    >>> Share(97, 100).text()
    '97.0% (91.5 to 99.0, n = 100)'
    """

    hits: int
    count: int

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.hits / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's: the shares that would give so many hits, or more extreme ones, in 5 of 100 cases at least."""
        z2, n, p = QUANTILE**2, self.count, self.share
        centre, half = p + z2 / (2 * n), QUANTILE * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
        return max(0.0, (centre - half) / (1 + z2 / n)), min(1.0, (centre + half) / (1 + z2 / n))

    def text(self) -> str:
        """In percent, with interval and count."""
        low, high = self.interval
        return f"{100 * self.share:.1f}% ({100 * low:.1f} to {100 * high:.1f}, n = {self.count:,})"

    def row(self) -> list[float]:
        """Share, low end, high end, count: as the page's script takes it."""
        return [self.share, *self.interval, self.count]
