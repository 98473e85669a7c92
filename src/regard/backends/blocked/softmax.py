"""Online softmax over tiles (Milakov and Gimelshein, 2018), and its backward pass by recomputation (Dao et al., 2022).

Memory is linear in tokens in both directions: one tile exists at a time. Between the two passes only output and
log_mass are kept, and the scores of a small problem.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.backends.base import Problem
from regard.backends.blocked.scores import TILE_PAIRS, TileScores, add_reduced, exp_flushed_
from regard.backends.custom_op import ForwardResults, Gradients, Needs
from regard.checks import accumulation_dtype, common_batch
from regard.masks.bound import BoundMask

# Largest number of scores that are kept for the backward pass.
MAX_KEPT_SCORES = 2**21
# A tile has at most this number of keys, unless it has room for all queries and more keys.
PREFERRED_TILE_KEYS = 512
# A tile has at least this number of queries and keys, even if it is then larger than TILE_PAIRS.
MIN_TILE_QUERIES = 16
MIN_TILE_KEYS = 64


@dataclass(frozen=True, slots=True)
class TiledProblem:
    """The part of a problem that does not depend on its score, and how it is cut into tiles.

    Attributes:
        value: (*batch, keys, value_dim) in the accumulation dtype.
        batch: the batch shape that all inputs broadcast to.
        queries: number of queries.
        keys: number of keys.
        mask: the mask.
        bias: (*batch or 1, queries or 1, keys or 1) in the accumulation dtype.
        dropout: probability with which a weight is dropped.
        seeds: the seeds of dropout, on the CPU; () or the first batch axes, because with torch.vmap each example may
            have its own seed.
        tile_factor: how many times larger than TILE_PAIRS a tile is on a CPU.
    """

    value: Tensor
    batch: tuple[int, ...]
    queries: int
    keys: int
    mask: BoundMask | None = None
    bias: Tensor | None = None
    dropout: float = 0.0
    seeds: Tensor | None = None
    tile_factor: int = 1

    @classmethod
    def of(cls, problem: Problem, tile_factor: int) -> "TiledProblem":
        """Return the parts of a problem that do not depend on its score."""
        value, bias, dtype = problem.value, problem.bias, accumulation_dtype(problem.value.dtype)
        return cls(
            value=value.to(dtype),
            batch=problem.full_batch,
            queries=problem.queries,
            keys=problem.keys,
            mask=problem.mask,
            bias=bias.to(dtype) if isinstance(bias, Tensor) else None,
            dropout=problem.dropout,
            seeds=None if problem.seed is None else problem.seed.cpu(),  # copied once, because every tile reads it
            tile_factor=tile_factor,
        )

    def blocks(self) -> Iterator[tuple[slice, list[slice]]]:
        """Yield blocks of queries, each with the blocks of keys that the mask does not hide completely."""
        num_queries, num_keys = self._tile_shape()
        columns = [slice(j, min(j + num_keys, self.keys)) for j in range(0, self.keys, num_keys)]
        for i in range(0, self.queries, num_queries):
            rows = slice(i, min(i + num_queries, self.queries))
            yield rows, [cols for cols in columns if self.mask is None or self.mask.coverage(rows, cols) is not False]

    def add_bias_and_mask(self, scores: Tensor, rows: slice, cols: slice) -> Tensor:
        """Return scores plus bias, and minus infinity where the mask forbids a pair."""
        if self.bias is not None:
            scores = scores + _bias_tile(self.bias, rows, cols)
        return self.fill_masked(scores, rows, cols, -math.inf)

    def fill_masked(self, tile: Tensor, rows: slice, cols: slice, fill: float) -> Tensor:
        """Return the tile with `fill` where the mask forbids a pair."""
        if self.mask is None or self.mask.coverage(rows, cols) is True:
            return tile
        return tile.masked_fill(~self.mask.tile(rows, cols, tile.device), fill)

    def dropout_mask(self, rows: slice, cols: slice, like: Tensor) -> Tensor | None:
        """Return 0 for dropped weights and 1 / (1 - dropout) for the others; the same for the same tile and seed."""
        if not self.dropout:
            return None
        assert self.seeds is not None
        generator = torch.Generator(like.device)
        shape = (*self.batch[self.seeds.ndim :], rows.stop - rows.start, cols.stop - cols.start)
        drawn = []
        for seed in self.seeds.flatten().tolist():
            generator.manual_seed(seed + rows.start * self.keys + cols.start)
            drawn.append(torch.rand(shape, generator=generator, device=like.device, dtype=like.dtype))
        uniform = torch.stack(drawn).view(*self.seeds.shape, *shape)
        scale = 1 / (1 - self.dropout) if self.dropout < 1 else 0.0
        return (uniform >= self.dropout).to(like.dtype).mul_(scale)

    def _tile_shape(self) -> tuple[int, int]:
        """Return how many queries and keys a tile has."""
        device = self.value.device.type
        pairs = TILE_PAIRS.get(device, TILE_PAIRS["cuda"]) * (self.tile_factor if device == "cpu" else 1)
        pairs //= max(math.prod(self.batch), 1)
        num_keys = min(max(PREFERRED_TILE_KEYS, pairs // self.queries), pairs // MIN_TILE_QUERIES)
        num_keys = max(num_keys, MIN_TILE_KEYS)
        return max(pairs // max(min(num_keys, self.keys), 1), MIN_TILE_QUERIES), num_keys


def keeps_scores(can_keep: bool, shape: Sequence[int]) -> bool:
    """Return whether scores of this shape are kept for the backward pass.

    Args:
        can_keep: whether scores may be kept for a backward pass.
        shape: (*batch, queries, keys).
    """
    return can_keep and math.prod(shape) <= MAX_KEPT_SCORES


def forward(tile_scores: TileScores, tiled: TiledProblem, can_keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, log_mass and kept scores, in the accumulation dtype.

    Args:
        tile_scores: the scores of the problem.
        tiled: the rest of the problem.
        can_keep: whether scores may be kept for a backward pass.

    Returns:
        Output (*batch, queries, value_dim), log_mass (*batch, queries), and all scores (*batch, queries, keys) or, if
        they are not kept, an empty tensor (*batch, 0).
    """
    output = tiled.value.new_empty(*tiled.batch, tiled.queries, tiled.value.shape[-1])
    log_mass = output.new_empty(*tiled.batch, tiled.queries)
    no_scores = log_mass.new_empty(*tiled.batch, 0)
    if _needs_no_maximum(tile_scores, tiled):
        _forward_without_maximum(tile_scores, tiled, output, log_mass)
        return output, log_mass, no_scores
    shape = (*tiled.batch, tiled.queries, tiled.keys)
    kept = output.new_empty(shape) if keeps_scores(can_keep, shape) else None
    for rows, columns in tiled.blocks():
        output[..., rows, :], log_mass[..., rows] = online_softmax(tile_scores, tiled, rows, columns, kept)
    return output, log_mass, no_scores if kept is None else kept


def online_softmax(
    tile_scores: TileScores, tiled: TiledProblem, rows: slice, columns: list[slice], kept: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return output and log_mass of one block of queries, by online softmax over the blocks of keys.

    Args:
        tile_scores: the scores of the problem.
        tiled: the rest of the problem.
        rows: the queries.
        columns: blocks of keys.
        kept: where the scores are stored for the backward pass, (*batch, queries, keys); None if they are not kept.

    Returns:
        (*batch, rows, value_dim) and (*batch, rows).
    """
    value = tiled.value
    peak = value.new_full((*tiled.batch, rows.stop - rows.start, 1), -math.inf)
    mass, output = torch.zeros_like(peak), value.new_zeros(*peak.shape[:-1], value.shape[-1])
    for cols in columns:
        scores = tiled.add_bias_and_mask(tile_scores.scores(rows, cols), rows, cols)
        if kept is not None:
            kept[..., rows, cols] = scores
        new_peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
        # A row without an allowed key so far has peak -inf. Subtracting 0 instead keeps its mass 0 and avoids NaN.
        base = new_peak.masked_fill(new_peak == -math.inf, 0.0)
        rescale = (peak - base).exp_()
        weights = exp_flushed_(_subtract(scores, base))  # unnormalised
        mass.mul_(rescale).add_(weights.sum(-1, keepdim=True))
        dropout_mask = tiled.dropout_mask(rows, cols, weights)
        if dropout_mask is not None:
            weights = weights * dropout_mask
        output.mul_(rescale).add_(weights @ value[..., cols, :])
        peak = new_peak
    empty = mass == 0
    output.div_(mass.masked_fill(empty, 1.0))
    return output, mass.log_().add_(peak).masked_fill_(empty, -math.inf).squeeze(-1)


def _needs_no_maximum(tile_scores: TileScores, tiled: TiledProblem) -> bool:
    """Return whether sums of exp(score) cannot overflow.

    That is so if no score is above 0, the bias does not vary by query and its maximum is finite. False on a GPU, where
    reading the bias and the mass would wait for the GPU.
    """
    if not tile_scores.at_most_zero or tiled.value.device.type != "cpu":
        return False
    return tiled.bias is None or (tiled.bias.shape[-2] == 1 and bool(tiled.bias.amax().isfinite()))


def _forward_without_maximum(tile_scores: TileScores, tiled: TiledProblem, output: Tensor, log_mass: Tensor) -> None:
    """Write output and log_mass of a kernel, which is at most 1, from sums without a running maximum.

    A tile costs its kernel values and one product, which gives output and mass together. A row of tiny mass is far from
    every key, and terms of its sums may have underflowed, so online softmax computes its block again. The benchmark of
    this function is `python -m benchmarks regression`.
    """
    weighted, ceiling = _weighted_values(tiled)
    zero_means_no_keys = tile_scores.compact_support and _is_above_underflow(weighted)
    # Half of the exponents are for the mass, the other half for the values that it multiplies.
    tiny = math.sqrt(torch.finfo(weighted.dtype).tiny)
    for rows, columns in tiled.blocks():
        sums = weighted.new_zeros(*tiled.batch, weighted.shape[-2], rows.stop - rows.start)
        for cols in columns:
            weights = tiled.fill_masked(tile_scores.kernel_values(rows, cols), rows, cols, 0.0)
            # In this order, because a product with few columns is several times slower than one with few rows.
            product = weighted[..., cols] @ weights.mT
            dropout_mask = tiled.dropout_mask(rows, cols, weights)
            if dropout_mask is None:
                sums += product
            else:
                sums[..., -1:, :] += product[..., -1:, :]
                sums[..., :-1, :] += weighted[..., :-1, cols] @ (weights * dropout_mask).mT
        numerator, mass = sums[..., :-1, :].mT, sums[..., -1:, :].mT
        too_small = mass < tiny
        if zero_means_no_keys:
            too_small &= mass > 0
        if columns and bool(too_small.any()):
            output[..., rows, :], log_mass[..., rows] = online_softmax(tile_scores, tiled, rows, columns)
            continue
        torch.div(numerator, mass.masked_fill(mass == 0, 1.0), out=output[..., rows, :])
        log_mass[..., rows] = mass.squeeze(-1).log_().add_(ceiling)


def _weighted_values(tiled: TiledProblem) -> tuple[Tensor, float]:
    """Return exp(bias - ceiling) [value, 1], (*batch, value_dim + 1, keys), and the ceiling: the largest bias."""
    value = tiled.value
    with_ones = torch.cat([value, value.new_ones(*value.shape[:-1], 1)], -1)
    if tiled.bias is None:
        return with_ones.mT.contiguous(), 0.0
    ceiling = tiled.bias.amax()
    weight = exp_flushed_(tiled.bias - ceiling).mT
    return (weight * with_ones).mT.contiguous(), float(ceiling)


def _is_above_underflow(weighted: Tensor) -> bool:
    """Return whether a mass of 0 means that no key is in the support of a compact kernel.

    Such a kernel is 0 or at least eps^3, and this times the smallest weight must be a normal number.
    """
    numbers = torch.finfo(weighted.dtype)
    return float(weighted[..., -1, :].amin()) >= numbers.tiny / numbers.eps**3


def backward(
    tile_scores: TileScores,
    tiled: TiledProblem,
    results: ForwardResults,
    d_output: Tensor,
    d_log_mass: Tensor,
    needs: Needs,
) -> Gradients:
    """Return the gradients of a problem.

    With weights P = exp(S - log_mass), recomputed tile by tile, the dropout mask D and
    delta = rowsum(dO * O) - dlog_mass: dV = (P * D)^T dO, and dS = P * (D * dO V^T - delta).

    Args:
        tile_scores: the scores of the problem, which collect the gradients of their operands.
        tiled: the rest of the problem.
        results: output, log_mass and kept scores, as `forward` returns them.
        d_output: (*batch, queries, value_dim).
        d_log_mass: (*batch, queries).
        needs: which gradients are needed.

    Returns:
        The gradients in the accumulation dtype.
    """
    value = tiled.value
    output, log_mass, kept, d_output, d_log_mass = (x.to(value.dtype) for x in (*results, d_output, d_log_mass))
    d_value = torch.zeros_like(value) if needs.value else None
    d_bias = torch.zeros_like(tiled.bias) if needs.bias and tiled.bias is not None else None
    needs_scores = needs.bias or any(needs.pair)
    base = log_mass.masked_fill(log_mass == -math.inf, 0.0).unsqueeze(-1)
    delta = ((d_output * output).sum(-1) - d_log_mass).unsqueeze(-1)
    pair_batch = common_batch(*tile_scores.operands)
    for rows, columns in tiled.blocks():
        d_rows = d_output[..., rows, :]
        for cols in columns:
            if kept.numel():
                log_weights = kept[..., rows, cols] - base[..., rows, :]
            else:
                scores = tiled.add_bias_and_mask(tile_scores.scores(rows, cols), rows, cols)
                log_weights = _subtract(scores, base[..., rows, :])
            weights = exp_flushed_(log_weights)
            dropout_mask = tiled.dropout_mask(rows, cols, weights)
            if d_value is not None:
                dropped = weights if dropout_mask is None else weights * dropout_mask
                add_reduced(d_value[..., cols, :], dropped.mT @ d_rows)
            if not needs_scores:
                continue
            d_weights = d_rows @ value[..., cols, :].mT
            if dropout_mask is not None:
                d_weights.mul_(dropout_mask)
            d_scores = d_weights.sub_(delta[..., rows, :]).mul_(weights)
            if d_bias is not None:
                add_reduced(_bias_tile(d_bias, rows, cols), d_scores)
            if any(needs.pair):
                tile_scores.accumulate(rows, cols, d_scores.sum_to_size(*pair_batch, *d_scores.shape[-2:]))
    return Gradients(tile_scores.grads, d_value, d_bias)


def _subtract(scores: Tensor, base: Tensor) -> Tensor:
    """Return scores - base, in place unless the values have more batch axes than the scores."""
    return scores.sub_(base) if scores.shape[:-1] == base.shape[:-1] else scores - base


def _bias_tile(bias: Tensor, rows: slice, cols: slice) -> Tensor:
    """Return a view of the bias at a tile; axes of size 1 keep that size."""
    everything = slice(None)
    return bias[..., rows if bias.shape[-2] > 1 else everything, cols if bias.shape[-1] > 1 else everything]
