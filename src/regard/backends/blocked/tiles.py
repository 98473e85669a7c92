"""What a sweep asks of a closed form: the scores of one tile, and the gradients of its operands."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.backends.blocked.gaussian import GaussianProduct, gaussian_rate
from regard.backends.blocked.memory import TileMemory
from regard.checks import common_batch
from regard.scores.kernels import Boxcar, Kernel, TaperedKernel, ratio

# Up to this width a squared distance and its gradient are summed dimension by dimension, exact at any offset.
# Beyond it the gradient is a matrix product in float64, where the extent of a tile costs no digit that counts.
WIDEST_DIFFERENCE = 16


class Tiles(ABC):
    """One closed form over all queries and keys, evaluated tile by tile in the accumulation dtype.

    never_positive: no score is above 0. compact: a score is minus infinity or the logarithm of some eps^3 at least.
    larger: how many times larger than others its tiles are on a CPU.
    """

    never_positive = False
    compact = False
    larger = 1

    def __init__(self, operands: Sequence[Tensor], needs: Sequence[bool]) -> None:
        """operands: the form's tensors; needs: which of them want a gradient."""
        self.operands = operands
        self.needs = needs
        self.grads = [torch.zeros_like(tensor) if need else None for tensor, need in zip(operands, needs, strict=True)]

    @abstractmethod
    def scores(self, rows: slice, cols: slice) -> Tensor:
        """A tensor (*batch, rows, cols), which the caller may overwrite, and the next call too."""

    def masses(self, rows: slice, cols: slice) -> Tensor:
        """e^score of one tile; the caller may overwrite it, and the next call too."""
        return exp_(self.scores(rows, cols))

    @abstractmethod
    def backward(self, rows: slice, cols: slice, grad: Tensor) -> None:
        """Add what the gradient of one tile's scores, (*batch, rows, cols), gives to each operand."""

    def gradients(self) -> list[Tensor | None]:
        """The gradients of the operands, after every tile."""
        return self.grads

    def add(self, index: int, at: slice, grad: Tensor) -> None:
        """Add to the rows `at` of an operand's gradient, summing over the axes it was shared along."""
        total = self.grads[index]
        if total is not None:
            add_shared(total[..., at, :], grad)


def add_shared(total: Tensor, grad: Tensor) -> None:
    """Add a gradient in place, summed over the axes on which the total has size 1."""
    total.add_(grad if grad.shape == total.shape else grad.sum_to_size(total.shape))


def exp_(scores: Tensor) -> Tensor:
    """e^score in place, and 0 where that is no normal number.

    On a CPU such results, and the exponential of minus infinity, take a hundred times longer than the others.
    """
    if scores.device.type != "cpu":
        return scores.exp_()
    least = math.log(torch.finfo(scores.dtype).tiny) + 1
    return torch.threshold_(scores.clamp_min_(least).exp_(), math.exp(least + 1), 0.0)


class DotTiles(Tiles):
    """scale * q'k (eq. 7 to 11), with or without softcap; operands query, key."""

    def __init__(self, operands: Sequence[Tensor], needs: Sequence[bool], scale: float, softcap: float) -> None:
        """Softcap 0 means none."""
        super().__init__(operands, needs)
        self.scale = scale
        self.softcap = softcap
        self.query, self.key = operands

    def scores(self, rows: slice, cols: slice) -> Tensor:
        """One matrix product."""
        product = self._product(rows, cols)
        return product.div_(self.softcap).tanh_().mul_(self.softcap) if self.softcap else product

    def backward(self, rows: slice, cols: slice, grad: Tensor) -> None:
        """dq = scale dS k, dk = scale dS' q."""
        if self.softcap:
            bent = self._product(rows, cols).div_(self.softcap).tanh_()
            grad = grad * (1 - bent.square_())
        grad = grad * self.scale
        if self.needs[0]:
            self.add(0, rows, grad @ self.key[..., cols, :])
        if self.needs[1]:
            self.add(1, cols, grad.mT @ self.query[..., rows, :])

    def _product(self, rows: slice, cols: slice) -> Tensor:
        return (self.query[..., rows, :] * self.scale) @ self.key[..., cols, :].mT


class DistanceTiles(Tiles):
    """kernel(|q - k|^2 / width^2) (eq. 5 and 6); operands query, key, width."""

    never_positive = True

    def __init__(self, operands: Sequence[Tensor], needs: Sequence[bool], kernel: Kernel, dtype: torch.dtype) -> None:
        """dtype: that of the user's data, in which a boxcar's edge is compared."""
        super().__init__(operands, needs)
        self.query, self.key, self.width = operands
        self.key_columns = self.key.mT.contiguous()
        self.kernel = kernel
        self.compact = kernel.is_compact
        rate = gaussian_rate(self.width, kernel)
        self.product = None if rate is None else GaussianProduct.of(self.query, self.key, rate)
        self.rate = None if rate is None else rate.to(self.width.dtype)
        self.dtype = dtype
        self.batch = common_batch(self.query, self.key)
        self.memory = TileMemory(self.query.device, self.query.dtype, self.query.dtype)

    def scores(self, rows: slice, cols: slice) -> Tensor:
        """The log-kernel at squared distances formed from differences, or what is as exact as that."""
        if self.product is not None:
            return self.product.scores(rows, cols)
        if self.rate is not None:
            return self._squared(rows, cols) * self._at(self.rate, rows)
        return self.kernel.log_kernel(self._squared(rows, cols), self._at(self.width, rows), self.dtype)

    def masses(self, rows: slice, cols: slice) -> Tensor:
        """The kernel itself: a compact one without a detour through its logarithm. It is 0 from z = 1 on."""
        if not isinstance(self.kernel, TaperedKernel):
            return super().masses(rows, cols)
        return self.kernel.values(ratio(self._squared(rows, cols), self._at(self.width, rows)).clamp_max_(1))

    def backward(self, rows: slice, cols: slice, grad: Tensor) -> None:
        """Through z = |q - k|^2 / width^2: dz = dS slope(z), then to q, k and width."""
        width = self._at(self.width, rows)
        z = ratio(self._squared(rows, cols), width)
        grad = grad * self.kernel.slope(z)
        if self.needs[2]:
            at = rows if self.width.shape[-2] > 1 else slice(None)
            # A forbidden pair has gradient 0 and may be infinitely far: 0 * inf is left out.
            pull = (grad * z).masked_fill_(grad == 0, 0.0)
            self.add(2, at, pull.sum(-1, keepdim=True).mul_(-2).div_(width))
        if self.needs[0] or self.needs[1]:
            self._backward_tokens(rows, cols, ratio(grad.mul_(2), width))

    def _backward_tokens(self, rows: slice, cols: slice, grad: Tensor) -> None:
        """grad: (*batch, rows, cols), twice the gradient of the squared distance."""
        query, key = self.query[..., rows, :], self.key[..., cols, :]
        # Heads with widths of their own may share their tokens: their changes are added before anything is multiplied.
        grad = grad.sum_to_size(*self.batch, *grad.shape[-2:])
        if query.shape[-1] <= WIDEST_DIFFERENCE:
            for dim, difference in enumerate(self._differences(rows, cols)):
                pull = difference.mul_(grad)
                self._add_column(0, rows, dim, pull.sum(-1))
                self._add_column(1, cols, dim, pull.sum(-2).neg_())
            return
        query, key, grad = query.double(), key.double(), grad.double()
        centre = key.mean(-2, keepdim=True)
        query, key = query - centre, key - centre
        self.add(0, rows, (query * grad.sum(-1, keepdim=True) - grad @ key).to(self.query.dtype))
        self.add(1, cols, (key * grad.sum(-2).unsqueeze(-1) - grad.mT @ query).to(self.key.dtype))

    def _add_column(self, index: int, at: slice, column: int, grad: Tensor) -> None:
        total = self.grads[index]
        if total is not None:
            add_shared(total[..., at, column], grad)

    def _at(self, parameter: Tensor, rows: slice) -> Tensor:
        """A parameter (*batch, queries or 1, 1) at some of the queries."""
        return parameter if parameter.shape[-2] == 1 else parameter[..., rows, :]

    def _squared(self, rows: slice, cols: slice) -> Tensor:
        if self.query.shape[-1] > WIDEST_DIFFERENCE:
            query, key = self.query[..., rows, :], self.key[..., cols, :]
            return torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist").square_()
        total, _ = self._rooms(rows, cols)
        differences = self._differences(rows, cols)
        torch.square(next(differences), out=total)
        for difference in differences:
            if isinstance(self.kernel, Boxcar):
                # addcmul_ rounds once: a pair at the edge of a boxcar would not be where the equations have it.
                total.add_(difference.square_())
            else:
                total.addcmul_(difference, difference)
        return total

    def _rooms(self, rows: slice, cols: slice) -> list[Tensor]:
        """Memory for two tensors (*batch, rows, cols)."""
        shape = (*self.batch, rows.stop - rows.start, cols.stop - cols.start)
        return self.memory.at(shape, shape)

    def _differences(self, rows: slice, cols: slice) -> Iterator[Tensor]:
        """q - k in each dimension, (*batch, rows, cols), one after the other in the same memory."""
        _, out = self._rooms(rows, cols)
        queries, keys = self.query[..., rows, :].split(1, -1), self.key_columns[..., cols].split(1, -2)
        for query, key in zip(queries, keys, strict=True):
            yield torch.sub(query, key, out=out)
