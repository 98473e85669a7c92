"""Additive tiles by matrix products: groups of hidden units as one ratio of two short dot products.

With u = e^(2a) and v = e^(2b), tanh(a + b) = (uv - 1) / (uv + 1). The sum over a group of four hidden units has
the common denominator D = prod_i (1 + u_i v_i), and expanding the products gives sums over the 16 subsets S of
the group in which query and key are separate factors:

    D = sum_S u_S v_S        N = sum_S c_S u_S v_S        u_S = prod_{i in S} u_i,   c_S = sum_i +-w_i (+ if i in S)

so a group costs two matrix products of inner size 16 and one division per pair, exactly: no transcendental
function and no tensor with a hidden axis. Both products may be scaled by any factor per token, because only
their ratio counts; dividing by prod_i max(1, u_i) keeps every factor in (0, 1].

Each factor and each sum of a positive D is rounded a few times, so N / D keeps the promise for the units of a group;
the derivative in each of their activations too: the four share a denominator, and so their errors.
"""

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from regard.backends.blocked.additive import AdditiveTiles
from regard.backends.blocked.memory import TileMemory
from regard.backends.blocked.tiles import add_shared
from regard.shapes import common_batch

GROUP = 4

# In a tile of few pairs it is the number of products that costs: it takes several groups at once, in fours, as many as
# give so many fractions. Fewer would only have to be added up again, and an odd number is shared badly by two cores.
FEW_PAIRS, FRACTIONS, FOURS = 2**17, 2**19, 4


class SubsetTiles(AdditiveTiles):
    """Two products and a division for each group of hidden units."""

    # Up to here the scaled denominator, at least e^(-8 reach), is so far above the smallest normal number that no term
    # that counts is lost, and the exponents, whose rounding grows with them, keep the promise.
    reaches: ClassVar[dict[torch.dtype, float]] = {torch.float32: 8.0, torch.float64: 12.0}

    def __init__(self, operands: Sequence[Tensor], needs: Sequence[bool], tanh: bool = False) -> None:
        """Expand the tokens into their subset products, linear in tokens; tanh: take tanh in every tile."""
        super().__init__(operands, needs, tanh)
        self.members = _subsets(self.query)
        self.signs = 2 * self.members - 1
        # The factors of D and of N, (groups, *batch, tokens, 16) each.
        reach = self.reaches[self.query.dtype]
        self.key_products = _products(self.key, self.signs, reach)
        self.query_products = _products(self.query, self.signs, reach)
        self.coefficients = _by_group(self.weight) @ self.signs.mT
        self.memory = TileMemory(self.query.device, self.query.dtype, self.query.dtype)
        if any(needs):
            shared = common_batch(self.query_products, self.coefficients)
            self.to_numerators = self.query_products.new_zeros(*shared, *self.query_products.shape[-2:])
            self.from_query_products = torch.zeros_like(self.query_products)
            # Subsets are rows here: products with few rows are faster than with few columns.
            *groups, tokens, subsets = self.key_products.shape
            self.to_keys = self.key_products.new_zeros(*groups, subsets, tokens)

    def identity_scores(self, rows: slice, cols: slice) -> Tensor:
        """Sum over groups of N / D."""
        total: Tensor | None = None
        for _, _, (upper, lower) in self._fractions(rows, cols):
            if total is None:
                total = upper.div_(lower).sum(0)
            elif len(upper) > 1:
                total.add_(upper.div_(lower).sum(0))
            else:
                total.addcdiv_(upper[0], lower[0])
        assert total is not None
        return total

    def identity_backward(self, rows: slice, cols: slice, grad: Tensor) -> None:
        """dN = dS / D and -dD = dS N / D^2 for each group, then matrix products to the factors.

        Both overwrite N and D, which leaves -dD where N was and dN where D was; a D that heads share is left alone.
        """
        # The products below are thin: the cores share one badly, and take one each of two.
        several = 1 if math.prod(grad.shape[:-2]) > 1 else 2
        for groups, numerators, (upper, lower) in self._fractions(rows, cols, several):
            facing = self.key_products[groups, ..., cols, :]
            products = self.query_products[groups, ..., rows, :]
            upper.div_(lower)
            pull = torch.div(grad, lower, out=lower if lower.shape[1:] == grad.shape else None)
            upper.mul_(pull)
            add_shared(self.to_numerators[groups, ..., rows, :], pull @ facing)
            add_shared(self.from_query_products[groups, ..., rows, :], upper @ facing)
            add_shared(self.to_keys[groups, ..., cols], (numerators.mT @ pull).sub_(products.mT @ upper))

    def gradients(self) -> list[Tensor | None]:
        """From the subset products back to a, b and w; tiles that took tanh have added theirs already.

        The scaling of the products cancels in the ratio and so counts as a constant: d u_S / d a_i is 2 u_S.
        """
        pull = self.to_numerators.mul_(self.query_products)
        if self.needs[2]:
            self._add_all(2, _ungroup(pull.sum(-2, keepdim=True) @ self.signs, self.weight))
        if self.needs[0]:
            down = self.from_query_products.mul_(self.query_products)
            # A query that heads share has been summed over them here already, its numerators have not.
            pull = pull.mul_(self.coefficients).sum_to_size(down.shape).sub_(down)
            self._add_all(0, _ungroup(2 * (pull @ self.members), self.query))
        if self.needs[1]:
            pull = self.to_keys.mT * self.key_products
            self._add_all(1, _ungroup(2 * (pull @ self.members), self.key))
        return self.grads

    def _fractions(self, rows: slice, cols: slice, several: int = 1) -> Iterator[tuple[slice, Tensor, list[Tensor]]]:
        """Some groups, the queries' factors of their N, (groups, *batch, rows, 16), and their N and D.

        These are (groups, *batch, rows, cols) each, in the same memory, to be overwritten.
        several: so many groups at once, unless the tile is small.
        """
        products, facing = self.query_products[..., rows, :], self.key_products[..., cols, :].mT
        batches = [common_batch(products, facing, *x)[1:] for x in ((self.coefficients,), ())]
        pairs = math.prod(batches[0]) * (rows.stop - rows.start) * (cols.stop - cols.start)
        if pairs <= FEW_PAIRS:
            several = FRACTIONS // pairs // FOURS * FOURS
        together = min(several, len(facing))
        memory = self.memory.at(rows, cols, *((together, *batch) for batch in batches))
        first = 0
        for below, sizes, keys in zip(*(x.split(together) for x in (products, self.coefficients, facing)), strict=True):
            count = len(below)
            upper, lower = fraction = [x[:count] for x in memory] if count < together else memory
            numerators = below * sizes
            torch.matmul(numerators, keys, out=upper)
            torch.matmul(below, keys, out=lower)
            yield slice(first, first + count), numerators, fraction
            first += count

    def _add_all(self, index: int, grad: Tensor) -> None:
        total = self.grads[index]
        assert total is not None
        add_shared(total, grad)


def _subsets(like: Tensor) -> Tensor:
    """Which of the group's units each subset has, (16, 4) of 0 and 1."""
    numbers = torch.arange(2**GROUP, device=like.device).unsqueeze(-1)
    return (numbers >> torch.arange(GROUP, device=like.device)).bitwise_and(1).to(like.dtype)


def _by_group(tokens: Tensor) -> Tensor:
    """(*batch, tokens, hidden) -> (groups, *batch, tokens, 4); missing units are 0, with weight 0."""
    if missing := -tokens.shape[-1] % GROUP:
        tokens = functional.pad(tokens, (0, missing))
    return tokens.unflatten(-1, (-1, GROUP)).movedim(-2, 0).contiguous()


def _ungroup(grouped: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_by_group`."""
    return grouped.movedim(0, -2).flatten(-2)[..., : like.shape[-1]]


def _products(tokens: Tensor, signs: Tensor, reach: float) -> Tensor:
    """u_S / prod_i max(1, u_i) = exp(sum_i +-a_i - sum_i |a_i|), + if i in S, for all S: (groups, *batch, tokens, 16).

    Activations beyond the reach are cut off: no tile asks for them, and their gradient here must be 0 and not NaN.
    """
    grouped = _by_group(tokens.clamp(-reach, reach).nan_to_num_(0.0))
    # A power of 2 is several times faster than one of e, and a thin product than a sum over four.
    exponents = grouped @ (math.log2(math.e) * signs.mT)
    less = signs.new_full((GROUP, len(signs)), -math.log2(math.e))
    exponents.view(-1, len(signs)).addmm_(grouped.abs_().view(-1, GROUP), less)
    return exponents.exp2_()
