"""What kernel regression pools, and what comes out: observations, kernel, pools and moments."""

from typing import NamedTuple

from torch import Tensor


class Observations(NamedTuple):
    """What is pooled: key (keys, dim), value (keys, outputs), weight (keys,) positive, or None where all are 1."""

    key: Tensor
    value: Tensor
    weight: Tensor | None = None

    @property
    def bias(self) -> Tensor | None:
        """The weights as `attend` takes them: their logarithms, added to the scores, (1, keys)."""
        return None if self.weight is None else self.weight.log().unsqueeze(0)

    def at(self, rows: Tensor) -> "Observations":
        """Some of the rows."""
        return Observations(self.key[rows], self.value[rows], None if self.weight is None else self.weight[rows])

    def most_rows(self, entries: int) -> int:
        """How many queries may have a number for each coordinate and output of all keys, with so many at once."""
        return max(entries // max(self.key.numel() + self.value.numel(), 1), 1)


class Kernel(NamedTuple):
    """A kernel of eq. 5 by its name in `regard.scores`, and its width.

    width: one number, one per dimension (dim,), or one per query (queries, 1).
    """

    name: str
    width: float | Tensor


class Moments(NamedTuple):
    """Moments of the keys about each query under the weights p of eq. 4, in the units of the data.

    shift: (queries, dim), sum p (k - q). spread: (queries, dim, dim), sum p (k - q)(k - q)'.
    cross: (queries, dim, outputs), sum p (k - q) value'.
    """

    shift: Tensor
    spread: Tensor
    cross: Tensor


class Pool(NamedTuple):
    """The pooled values of each query (eq. 4) and the logarithm of its kernel mass.

    mean: (queries, outputs), 0 where no key is in the window. log_mass: (queries,), log sum_j weight_j f(q, k_j),
    minus infinity there. moments: where they were asked for.
    """

    mean: Tensor
    log_mass: Tensor
    moments: Moments | None = None
