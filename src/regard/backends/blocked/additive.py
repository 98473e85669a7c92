"""Additive scores of one tile at a time (eq. 12), without a tanh for each pair.

With u = exp(-2a) and v = exp(2b), tanh(a + b) = 1 - 2r for r = u / (u + v), and its derivative is 4 (r - r^2): one
exponential for each token, and for each pair and hidden unit no more than one division. u, v, their sum and r are each
rounded once, so a tanh and its derivative have an error of a few eps. `docs/additive.md` explains this identity.

There are two ways to evaluate it. `ChunkedAdditive` stores r for a chunk of a tile that fits into the cache.
`CompiledAdditive` is a loop in C++, in which r never leaves a register; it is twice as fast, but torch.compile takes
seconds to compile it, so only callers that are compiled themselves use it.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import FunctionType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from regard.backends.blocked.scores import KEY, PARAMETER, QUERY, Scratch, TileScores, add_reduced
from regard.checks import accumulation_dtype, common_batch
from regard.torch_compat import below_autograd, has_cpp_compiler

# Bound on the error of a tanh and of its derivative, in units of the dtype's eps. The error of a score is at most this
# times sum |w|, which includes the rounding of the sum.
TANH_ERROR = 16.0
# Elements of the tensors of a chunk. On a CPU, smaller chunks spend their time on calls of operations, and larger ones
# do not fit into the cache; on a GPU a chunk keeps it busy.
CHUNK_ELEMENTS = {"cpu": 2**21, "cuda": 2**26}
# A chunk has at least this number of queries, because the backward pass writes a sum over the queries of each chunk.
MIN_CHUNK_QUERIES = 8
# The scores of tiles with at least this number of keys and pairs are summed hidden unit by hidden unit.
MIN_WIDE_KEYS, MIN_WIDE_PAIRS = 128, 2**18
# Sums over hidden units are sums of sums of this number of terms, to limit the rounding error.
SUM_LENGTH = 16
# The sizes at which a loop is compiled: batch, queries, keys and hidden units. They are different primes, so that torch
# does not assume that two sizes are always equal, and large enough that torch parallelises the loop.
EXAMPLE_SIZES = (3, 509, 251, 127)

Loop = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


def tanh_error(dtype: torch.dtype) -> float:
    """Return the bound on the error of a tanh, for inputs of a dtype."""
    return TANH_ERROR * torch.finfo(accumulation_dtype(dtype)).eps


def is_within_tolerance(tolerance: float | None, dtype: torch.dtype) -> bool:
    """Return whether the error of the identity is within a tolerance; None stands for the rounding of the dtype."""
    return tolerance is None or tolerance >= tanh_error(dtype)


class AdditiveScores(TileScores):
    """w' tanh(a + b) (eq. 12); the operands are a (queries), b (keys) and w.

    A tile uses the identity if all its activations are small enough for u and v, and tanh itself otherwise.

    Attributes:
        u: exp(-2a), (*batch, queries, hidden).
        v: exp(2b), (*batch, keys, hidden).
        batch: batch axes of the scores.
        use_tanh: whether all tiles use tanh itself.
    """

    # The fixed cost of a tile is high, so larger tiles are worth more than a smaller share of the cache.
    tile_factor = 2
    # For activations up to this size, u, v and their sum are normal numbers.
    max_activation: ClassVar[dict[torch.dtype, float]] = {torch.float32: 40.0, torch.float64: 340.0}

    def __init__(self, operands: Sequence[Tensor], needs: Sequence[bool], *, use_tanh: bool = False) -> None:
        """Compute u and v of every token.

        Args:
            operands: query, key and weight, in the accumulation dtype.
            needs: which of the operands need a gradient.
            use_tanh: whether all tiles use tanh itself, for a tolerance below the error of the identity.
        """
        super().__init__(operands, needs)
        self.query, self.key, self.weight = operands
        self.use_tanh = use_tanh
        self.query_activations, self.key_activations = _largest_activations(self.query), _largest_activations(self.key)
        self.batch = common_batch(*operands)
        self.u, self.v = (-2 * self.query).exp_(), (2 * self.key).exp_()

    def scores(self, rows: slice, cols: slice) -> Tensor:
        """Return sum_h w_h tanh(a_h + b_h)."""
        return (self.fast_scores if self._is_fast_safe(rows, cols) else self._tanh_scores)(rows, cols)

    def accumulate(self, rows: slice, cols: slice, d_scores: Tensor) -> None:
        """Add da_h = w_h sum dS (1 - tanh^2), db_h likewise, and dw_h = sum dS tanh."""
        (self.fast_accumulate if self._is_fast_safe(rows, cols) else self._tanh_accumulate)(rows, cols, d_scores)

    @abstractmethod
    def fast_scores(self, rows: slice, cols: slice) -> Tensor:
        """Return the scores by the identity."""

    @abstractmethod
    def fast_accumulate(self, rows: slice, cols: slice, d_scores: Tensor) -> None:
        """Accumulate by the identity."""

    def _is_fast_safe(self, rows: slice, cols: slice) -> bool:
        """Return whether a tile may use the identity; False if an activation is too large or NaN."""
        if self.use_tanh:
            return False
        limit = self.max_activation[self.query.dtype]
        return max(self.query_activations[rows]) <= limit and max(self.key_activations[cols]) <= limit

    def _tanh_scores(self, rows: slice, cols: slice) -> Tensor:
        scores: Tensor | float = 0.0
        for unit in range(self.query.shape[-1]):
            scores = scores + self._tanh(rows, cols, unit) * self.weight[..., unit : unit + 1]
        assert isinstance(scores, Tensor)
        return scores

    def _tanh_accumulate(self, rows: slice, cols: slice, d_scores: Tensor) -> None:
        for unit in range(self.query.shape[-1]):
            tanh = self._tanh(rows, cols, unit)
            d_query, d_key, d_weight = (None if grad is None else grad[..., unit] for grad in self.grads)
            if d_weight is not None:
                add_reduced(d_weight, (d_scores * tanh).sum((-2, -1)).unsqueeze(-1))
            d_sum = tanh.square_().neg_().add_(1).mul(d_scores * self.weight[..., unit : unit + 1])
            if d_query is not None:
                add_reduced(d_query[..., rows], d_sum.sum(-1))
            if d_key is not None:
                add_reduced(d_key[..., cols], d_sum.sum(-2))

    def _tanh(self, rows: slice, cols: slice, unit: int) -> Tensor:
        one = slice(unit, unit + 1)
        return (self.query[..., rows, one] + self.key[..., cols, one].mT).tanh_()


def _largest_activations(tokens: Tensor) -> list[float]:
    """Return the largest |activation| of each token over batch and hidden units; infinity for NaN."""
    largest = tokens.abs().amax(-1)
    return largest.flatten(0, -2).amax(0).nan_to_num(nan=torch.inf).tolist() if largest.ndim > 1 else largest.tolist()


class Chunk(NamedTuple):
    """Some pairs of a tile, with all hidden units.

    Attributes:
        queries: the queries of the chunk, as positions in the tile.
        keys: the keys of the chunk, as positions in the tile.
        u: u of these queries, (*batch, queries, 1, hidden).
        denominator: u + v, (*batch, queries, keys, hidden), where *batch lacks axes that only the weights have.
        scratch: uninitialised, (*batch, queries, keys, hidden) with all batch axes. It is `denominator` itself if that
            has all batch axes and the caller does not need both.
    """

    queries: slice
    keys: slice
    u: Tensor
    denominator: Tensor
    scratch: Tensor


class ChunkedAdditive(AdditiveScores):
    """The identity in plain operations on chunks of a tile: u + v, r, and sums of products with r."""

    def __init__(self, operands: Sequence[Tensor], needs: Sequence[bool], *, use_tanh: bool = False) -> None:
        """Compute u and v of every token, and scale the weights to at most 1, so that numerators do not overflow."""
        super().__init__(operands, needs, use_tanh=use_tanh)
        self.scratch = Scratch(self.u.device, *3 * [self.u.dtype])
        self.weight_scale = self.weight.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(self.u.dtype).tiny)
        self.unit_weight = self.weight / self.weight_scale

    def fast_scores(self, rows: slice, cols: slice) -> Tensor:
        """Return sum_h w_h (1 - 2 r_h)."""
        scores = self.u.new_zeros(*self.batch, rows.stop - rows.start, cols.stop - cols.start)
        is_wide = scores.shape[-1] >= MIN_WIDE_KEYS and scores.numel() >= MIN_WIDE_PAIRS
        (self._sum_units if is_wide else self._sum_chunks)(scores, rows, cols)
        return scores.mul_(self.weight_scale)

    def _sum_units(self, scores: Tensor, rows: slice, cols: slice) -> None:
        """Add the terms of all pairs to scores that are 0, one hidden unit after the other."""
        u, v = self.u[..., rows, :], self.v[..., cols, :]
        u, v, numerator = (x.movedim(-1, 0).contiguous() for x in (u, v, -2 * self.unit_weight * u))
        u, v, numerator = u.unsqueeze(-1), v.unsqueeze(-2), numerator.unsqueeze(-1)
        pairs = torch.broadcast_shapes(u.shape, v.shape)[1:]
        denominator, inner_sum, outer_sum = self.scratch.views(pairs, scores.shape, scores.shape)
        for outer in _slices(len(u), SUM_LENGTH**2):
            outer_sum.zero_()
            for units in _slices(outer.stop, SUM_LENGTH, outer.start):
                inner_sum.copy_(self.unit_weight[..., units].sum(-1, keepdim=True))
                for u_h, v_h, numerator_h in zip(u[units], v[units], numerator[units], strict=True):
                    inner_sum.addcdiv_(numerator_h, torch.add(u_h, v_h, out=denominator))
                outer_sum.add_(inner_sum)
            scores.add_(outer_sum)

    def _sum_chunks(self, scores: Tensor, rows: slice, cols: slice) -> None:
        """Write the sums over all hidden units, one chunk of pairs after the other."""
        factor = -2 * self.unit_weight.unsqueeze(-2)
        for queries, keys, u, denominator, scratch in self._chunks(rows, cols, two_tensors=False):
            torch.sum(torch.div(factor * u, denominator, out=scratch), -1, out=scores[..., queries, keys])
        scores.add_(self.unit_weight.sum(-1, keepdim=True))

    def fast_accumulate(self, rows: slice, cols: slice, d_scores: Tensor) -> None:
        """Add dw = sum dS (1 - 2r) over all pairs, da = 4 w sum dS (r - r^2) over keys, and db over queries."""
        d_query = d_scores.new_zeros(*self.batch, rows.stop - rows.start, self.u.shape[-1])
        d_key = d_scores.new_zeros(*self.batch, cols.stop - cols.start, self.u.shape[-1])
        sums_of_r = torch.zeros_like(d_query)
        for queries, keys, u, denominator, products in self._chunks(rows, cols, two_tensors=True):
            r = torch.div(u, denominator, out=denominator)
            torch.mul(r, d_scores[..., queries, keys, None], out=products)
            if self.needs[PARAMETER]:
                sums_of_r[..., queries, :].add_(products.sum(-2))
            products.addcmul_(products, r, value=-1)
            if self.needs[QUERY]:
                d_query[..., queries, :].add_(products.sum(-2))
            if self.needs[KEY]:
                d_key[..., keys, :].add_(products.sum(-3))
        self.add_gradient(QUERY, rows, d_query.mul_(4 * self.weight))
        self.add_gradient(KEY, cols, d_key.mul_(4 * self.weight))
        self.add_gradient(
            PARAMETER, slice(None), d_scores.sum((-2, -1), keepdim=True) - 2 * sums_of_r.sum(-2, keepdim=True)
        )

    def _chunks(self, rows: slice, cols: slice, *, two_tensors: bool) -> Iterator[Chunk]:
        """Yield the chunks of a tile. Each overwrites the previous one.

        Args:
            rows: queries of the tile.
            cols: keys of the tile.
            two_tensors: whether the caller needs `scratch` and `denominator` at the same time.
        """
        u, v = self.u[..., rows, None, :], self.v[..., None, cols, :]
        *pair_batch, height, width, hidden = torch.broadcast_shapes(u.shape, v.shape)
        batches = [pair_batch, self.batch] if two_tensors or tuple(pair_batch) != self.batch else [pair_batch]
        elements = CHUNK_ELEMENTS.get(u.device.type, CHUNK_ELEMENTS["cuda"])
        pairs = elements // (sum(map(math.prod, batches)) * hidden)
        num_keys = min(max(pairs // min(MIN_CHUNK_QUERIES, height), 1), width)
        num_queries = max(pairs // num_keys, 1)
        views = {}
        for queries in _slices(height, num_queries):
            chunk_u = u[..., queries, :, :]
            for keys in _slices(width, num_keys):
                size = queries.stop - queries.start, keys.stop - keys.start, hidden
                if size not in views:
                    views[size] = self.scratch.views(*((*batch, *size) for batch in batches))
                denominator = torch.add(chunk_u, v[..., keys, :], out=views[size][0])
                yield Chunk(queries, keys, chunk_u, denominator, views[size][-1])


def _slices(stop: int, size: int, start: int = 0) -> list[slice]:
    """Return consecutive slices of at most this size, from start to stop."""
    return [slice(at, min(at + size, stop)) for at in range(start, stop, size)]


class CompiledAdditive(AdditiveScores):
    """The identity as loops over pairs and hidden units, which torch.compile turns into C++."""

    def fast_scores(self, rows: slice, cols: slice) -> Tensor:
        """Return sum_h w_h (1 - 2 r_h)."""
        (scores,) = self._run(_scores_loop, self.u[..., rows, :], self.v[..., cols, :], self.weight)
        return scores

    def fast_accumulate(self, rows: slice, cols: slice, d_scores: Tensor) -> None:
        """Add da and dw from sums over keys, and db from the same loop with queries and keys exchanged."""
        u, v = self.u[..., rows, :], self.v[..., cols, :]
        if self.needs[QUERY] or self.needs[PARAMETER]:
            slopes, tanhs = self._run(_sums_loop, u, v, d_scores)
            self.add_gradient(QUERY, rows, slopes.mul_(self.weight))
            self.add_gradient(PARAMETER, slice(None), tanhs.sum(-2, keepdim=True))
        if self.needs[KEY]:
            slopes, _ = self._run(_sums_loop, v, u, d_scores.mT)
            self.add_gradient(KEY, cols, slopes.mul_(self.weight))

    def _run(self, loop: Loop, *tensors: Tensor) -> list[Tensor]:
        """Run a loop on contiguous tensors with one batch axis."""
        size = math.prod(self.batch)
        # Flatten first: an axis of size 1 may have any stride, and torch would compile a program for each stride.
        flat = [x.expand(*self.batch, *x.shape[-2:]).reshape(-1).view(size, *x.shape[-2:]) for x in tensors]
        return [x.view(*self.batch, *x.shape[-2:]) for x in run_loop(loop, *flat)]


def _scores_loop(u: Tensor, v: Tensor, weight: Tensor) -> tuple[Tensor]:
    """u (batch, queries, hidden), v (batch, keys, hidden), weight (batch, 1, hidden) -> (batch, queries, keys)."""
    return ((weight.unsqueeze(-2) * (1 - 2 * _ratio(u, v))).sum(-1),)


def _sums_loop(u: Tensor, v: Tensor, d_scores: Tensor) -> tuple[Tensor, Tensor]:
    """d_scores (batch, queries, keys) -> sums over keys of dS tanh' and of dS tanh, (batch, queries, hidden) each."""
    r, d_scores = _ratio(u, v), d_scores.unsqueeze(-1)
    return (d_scores * (4 * (r - r * r))).sum(-2), (d_scores * (1 - 2 * r)).sum(-2)


def _ratio(u: Tensor, v: Tensor) -> Tensor:
    """Return r = u / (u + v), (batch, queries, keys, hidden). With u and v exchanged, r - r^2 is the same."""
    u, v = u.unsqueeze(-2), v.unsqueeze(-3)
    return u / (u + v)


@cache
def can_compile_loops() -> bool:
    """Return whether torch.compile finds a working C++ compiler."""
    return has_cpp_compiler()


def run_loop(loop: Loop, u: Tensor, v: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    """Return the results of a loop, computed by the compiled loop for the pattern of axes of size 1."""
    ones = tuple(size == 1 for size in (*u.shape[:2], v.shape[1], u.shape[2]))
    with below_autograd():
        return _compiled(loop, u.dtype, ones)(u.detach(), v.detach(), other.detach())


@cache
def _compiled(loop: Loop, dtype: torch.dtype, ones: tuple[bool, ...]) -> Loop:
    """Return a compiled loop. Axes flagged in `ones` are fixed at size 1; all others accept any larger size.

    A copy is compiled, because torch limits the number of programs for one code object, and a loop needs one for each
    dtype and pattern of axes of size 1.
    """
    batch, queries, keys, hidden = (1 if one else size for one, size in zip(ones, EXAMPLE_SIZES, strict=True))
    assert isinstance(loop, FunctionType)
    program = torch.compile(FunctionType(loop.__code__.replace(), loop.__globals__), dynamic=True)
    shape = (batch, 1, hidden) if loop is _scores_loop else (batch, queries, keys)
    shapes = (batch, queries, hidden), (batch, keys, hidden), shape
    program(*(torch.ones(at, dtype=dtype, device="cpu") for at in shapes))
    return program
