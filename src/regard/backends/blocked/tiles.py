"""What a sweep asks of a closed form: the scores of one tile, and the gradients of its operands."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.scores.links import Link, ratio

# Up to this width a squared distance and its gradient are summed dimension by dimension, exact at any offset.
# Beyond it the gradient is a matrix product in float64, where the extent of a tile costs no digit that counts.
WIDEST_DIFFERENCE = 16


class Tiles(ABC):
    """One closed form over all queries and keys, evaluated tile by tile in the accumulation dtype."""

    def __init__(self, operands: Sequence[Tensor], needs: Sequence[bool]) -> None:
        """operands: the form's tensors; needs: which of them want a gradient."""
        self.operands = operands
        self.needs = needs
        self.grads = [torch.zeros_like(tensor) if need else None for tensor, need in zip(operands, needs, strict=True)]

    @abstractmethod
    def scores(self, rows: slice, cols: slice) -> Tensor:
        """A new tensor (*batch, rows, cols), which the caller may overwrite."""

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
    """link(|q - k|^2 / width^2) (eq. 5 and 6); operands query, key, width."""

    def __init__(self, operands: Sequence[Tensor], needs: Sequence[bool], link: Link, dtype: torch.dtype) -> None:
        """dtype: that of the user's data, in which a boxcar's edge is compared."""
        super().__init__(operands, needs)
        self.query, self.key, self.width = operands
        self.link = link
        self.dtype = dtype

    def scores(self, rows: slice, cols: slice) -> Tensor:
        """The log-kernel at squared distances formed from differences."""
        return self.link.log_kernel(self._squared(rows, cols), self._width(rows), self.dtype)

    def backward(self, rows: slice, cols: slice, grad: Tensor) -> None:
        """Through z = |q - k|^2 / width^2: dz = dS slope(z), then to q, k and width."""
        width = self._width(rows)
        z = ratio(self._squared(rows, cols), width)
        grad = grad * self.link.slope(z)
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
        if query.shape[-1] <= WIDEST_DIFFERENCE:
            for dim in range(query.shape[-1]):
                pull = self._difference(query, key, dim).mul_(grad)
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

    def _width(self, rows: slice) -> Tensor:
        return self.width if self.width.shape[-2] == 1 else self.width[..., rows, :]

    def _squared(self, rows: slice, cols: slice) -> Tensor:
        query, key = self.query[..., rows, :], self.key[..., cols, :]
        if query.shape[-1] > WIDEST_DIFFERENCE:
            return torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist").square_()
        total = self._difference(query, key, 0).square_()
        for dim in range(1, query.shape[-1]):
            difference = self._difference(query, key, dim)
            total.addcmul_(difference, difference)
        return total

    def _difference(self, query: Tensor, key: Tensor, dim: int) -> Tensor:
        one = slice(dim, dim + 1)
        return query[..., one] - key[..., one].mT
