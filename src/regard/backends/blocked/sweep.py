"""Two sweeps over the tiles of the score matrix: online softmax forward, recomputing backward.

Memory is linear in tokens in both directions: one tile at a time exists, and what is kept between the sweeps
is the output and log_mass, and the scores where they are few.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.blocked.memory import MOST_KEPT, TILE_ELEMENTS
from regard.backends.blocked.tiles import Tiles, add_shared, exp_
from regard.checks import common_batch
from regard.masks.bound import BoundMask

LONGEST_ROW = 512


class Sweep(NamedTuple):
    """Everything beside the form: value (*batch, keys, value_dim) in the accumulation dtype, mask, bias, dropout.

    seeds: of dropout, with the first axes of the batch, or none: where torch.vmap maps a call, each example has its own
    seed, or all share one; they are on the CPU. larger: how many times larger than usual a tile is on a CPU. keep:
    scores, if they are few, for the backward pass.
    """

    value: Tensor
    batch: tuple[int, ...]
    queries: int
    keys: int
    mask: BoundMask | None
    bias: Tensor | None
    dropout: float
    seeds: Tensor | None
    larger: int = 1
    keep: bool = False

    def blocks(self) -> Iterator[tuple[slice, list[slice]]]:
        """Blocks of queries, each with the blocks of keys that the mask does not empty."""
        height, width = self._tile_shape()
        columns = [slice(j, min(j + width, self.keys)) for j in range(0, self.keys, width)]
        for i in range(0, self.queries, height):
            rows = slice(i, min(i + height, self.queries))
            yield rows, [cols for cols in columns if self.mask is None or self.mask.coverage(rows, cols) is not False]

    def room(self) -> Tensor | None:
        """Where the scores of all pairs are kept, (*batch, queries, keys), if they are."""
        shape = (*self.batch, self.queries, self.keys)
        return self.value.new_empty(shape) if is_kept(self.keep, shape) else None

    def finish(self, scores: Tensor, rows: slice, cols: slice) -> Tensor:
        """Add the bias and forbid what the mask forbids; scores may be overwritten."""
        if self.bias is not None:
            scores = scores + _bias_tile(self.bias, rows, cols)
        return self.forbid(scores, rows, cols, -math.inf)

    def forbid(self, tile: Tensor, rows: slice, cols: slice, nothing: float) -> Tensor:
        """The tile with `nothing` where the mask forbids a pair: -inf for a score, 0 for a mass."""
        if self.mask is None or self.mask.coverage(rows, cols) is True:
            return tile
        return tile.masked_fill(~self.mask.tile(rows, cols, tile.device), nothing)

    def kept(self, rows: slice, cols: slice, like: Tensor) -> Tensor | None:
        """Which weights dropout keeps, scaled to keep the mean; the same for the same tile and seed."""
        if not self.dropout:
            return None
        assert self.seeds is not None
        generator = torch.Generator(like.device)
        shape = (*self.batch[self.seeds.ndim :], rows.stop - rows.start, cols.stop - cols.start)
        drawn = []
        for seed in self.seeds.flatten().tolist():
            generator.manual_seed((seed + rows.start * self.keys + cols.start) % 2**63)
            drawn.append(torch.rand(shape, generator=generator, device=like.device, dtype=like.dtype))
        uniform = torch.stack(drawn).view(*self.seeds.shape, *shape)
        return (uniform >= self.dropout).to(like.dtype).mul_(_inverse(1 - self.dropout))

    def _tile_shape(self) -> tuple[int, int]:
        device = self.value.device.type
        elements = TILE_ELEMENTS.get(device, TILE_ELEMENTS["cuda"]) * (self.larger if device == "cpu" else 1)
        budget = elements // max(math.prod(self.batch), 1)
        # A few queries may have longer rows: their tile is small nevertheless.
        width = max(min(max(LONGEST_ROW, budget // self.queries), budget // 16), 64)
        return max(budget // max(min(width, self.keys), 1), 16), width


def is_kept(keep: bool, shape: Sequence[int]) -> bool:
    """Whether scores of that shape are few enough to be kept, if they are to be."""
    return keep and math.prod(shape) <= MOST_KEPT


def forward(tiles: Tiles, sweep: Sweep) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output (*batch, queries, value_dim) and log_mass (*batch, queries), in the accumulation dtype; kept scores."""
    output = sweep.value.new_empty(*sweep.batch, sweep.queries, sweep.value.shape[-1])
    log_mass, kept = output.new_empty(*sweep.batch, sweep.queries), sweep.room()
    for rows, columns in sweep.blocks():
        output[..., rows, :], log_mass[..., rows] = pool_rows(tiles, sweep, rows, columns, kept)
    return output, log_mass, kept


def pool_rows(
    tiles: Tiles, sweep: Sweep, rows: slice, columns: list[slice], kept_scores: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One block of queries by online softmax: (*batch, rows, value_dim) and (*batch, rows)."""
    value = sweep.value
    peak = value.new_full((*sweep.batch, rows.stop - rows.start, 1), -math.inf)
    total, pooled = torch.zeros_like(peak), value.new_zeros(*peak.shape[:-1], value.shape[-1])
    for cols in columns:
        scores = sweep.finish(tiles.scores(rows, cols), rows, cols)
        if kept_scores is not None:
            kept_scores[..., rows, cols] = scores
        new_peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
        # A row that has seen no key yet has peak -inf; measured from 0 its mass stays 0 and nothing is NaN.
        base = new_peak.masked_fill(new_peak == -math.inf, 0.0)
        shrink = (peak - base).exp_()
        mass = exp_(_less(scores, base))
        total.mul_(shrink).add_(mass.sum(-1, keepdim=True))
        kept = sweep.kept(rows, cols, mass)
        pooled.mul_(shrink).add_((mass if kept is None else mass * kept) @ value[..., cols, :])
        peak = new_peak
    empty = total == 0
    pooled.div_(total.masked_fill(empty, 1.0))
    return pooled, total.log_().add_(peak).masked_fill_(empty, -math.inf).squeeze(-1)


class Gradients(NamedTuple):
    """Gradients of the form's operands, of value and of bias; None where none was asked for."""

    operands: list[Tensor | None]
    value: Tensor | None
    bias: Tensor | None


def backward(
    tiles: Tiles,
    sweep: Sweep,
    output: Tensor,
    log_mass: Tensor,
    grad_output: Tensor,
    grad_log_mass: Tensor,
    kept_scores: Tensor | None,
    needs_value: bool,
    needs_bias: bool,
) -> Gradients:
    """With weights P: dS = P (dO v' - dO'o + dlog_mass), each tile's weights recomputed from log_mass."""
    value = sweep.value
    grad_value = torch.zeros_like(value) if needs_value else None
    grad_bias = None
    if needs_bias:
        assert sweep.bias is not None
        grad_bias = torch.zeros_like(sweep.bias)
    needs_scores = needs_bias or any(tiles.needs)
    base = log_mass.masked_fill(log_mass == -math.inf, 0.0).unsqueeze(-1)
    mean = ((grad_output * output).sum(-1) - grad_log_mass).unsqueeze(-1)
    own_batch = common_batch(*tiles.operands)
    for rows, columns in sweep.blocks():
        grad_rows = grad_output[..., rows, :]
        for cols in columns:
            if kept_scores is None:
                below = _less(sweep.finish(tiles.scores(rows, cols), rows, cols), base[..., rows, :])
            else:
                below = kept_scores[..., rows, cols] - base[..., rows, :]
            weights = exp_(below)
            kept = sweep.kept(rows, cols, weights)
            if grad_value is not None:
                dropped = weights if kept is None else weights * kept
                add_shared(grad_value[..., cols, :], dropped.mT @ grad_rows)
            if not needs_scores:
                continue
            grad = grad_rows @ value[..., cols, :].mT
            grad = grad if kept is None else grad.mul_(kept)
            grad = grad.sub_(mean[..., rows, :]).mul_(weights)
            if grad_bias is not None:
                add_shared(_bias_tile(grad_bias, rows, cols), grad)
            if any(tiles.needs):
                tiles.backward(rows, cols, grad.sum_to_size(*own_batch, *grad.shape[-2:]))
    return Gradients(tiles.gradients() if any(tiles.needs) else [None] * len(tiles.needs), grad_value, grad_bias)


def _less(scores: Tensor, base: Tensor) -> Tensor:
    """scores - base, in the memory of the scores unless values with more batch axes share them."""
    return scores.sub_(base) if scores.shape[:-1] == base.shape[:-1] else scores - base


def _bias_tile(bias: Tensor, rows: slice, cols: slice) -> Tensor:
    """A view of the bias at a tile; axes of size 1 stay."""
    everything = slice(None)
    return bias[..., rows if bias.shape[-2] > 1 else everything, cols if bias.shape[-1] > 1 else everything]


def _inverse(kept_share: float) -> float:
    return 1 / kept_share if kept_share > 0 else 0.0
