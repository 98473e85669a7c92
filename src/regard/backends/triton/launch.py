"""Launch Triton kernels: batch axes, strides, masks, padded copies of tokens, and tile sizes.

Kernels read a tensor by its strides and have two batch axes, `outer` and `inner`. An axis of size 1 has stride 0 there,
so that a tensor which is shared over the batch is never copied.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.masks.bound import And, Band, BoundMask, Not

# Whether kernels run in Triton's interpreter. Triton reads the same variable when it is imported, so a later change of
# the variable has no effect.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# The length of transposed tokens is a multiple of this, which every tile divides.
PADDING = 128
# Two programs for each of the 132 multiprocessors of an H200.
MIN_PROGRAMS = 264
# At least the difference of any two positions; the backend accepts up to 2^30 tokens.
MAX_OFFSET = 2**30
# The band that allows every offset.
NO_BAND = (-MAX_OFFSET, MAX_OFFSET, 1, 0)

# A tensor and some of its strides, as a kernel takes them.
Operand = tuple[Tensor | int, ...]


class Tile(NamedTuple):
    """The size of a tile and how a program runs it.

    Attributes:
        queries: queries of a tile, BM in kernels.
        keys: keys of a tile, BN in kernels.
        warps: warps of a program.
        stages: stages of its software pipeline.
    """

    queries: int
    keys: int
    warps: int
    stages: int = 2


def launch(
    kernel: Any, programs: int, *operands: Tensor | Operand | None, tile: Tile | None = None, **settings: Any
) -> Any:
    """Start a kernel, and return it as Triton compiled it for these arguments (None in the interpreter).

    Args:
        kernel: a function decorated with triton.jit.
        programs: number of programs.
        *operands: its first arguments.
        tile: gives its arguments BM and BN, and the options of the launch.
        **settings: its other arguments.
    """
    if tile is not None:
        settings |= {"BM": tile.queries, "BN": tile.keys, "num_warps": tile.warps, "num_stages": tile.stages}
    return kernel[(programs,)](*operands, **settings)


# --- Calls of one launch ---------------------------------------------------------------------------------------

Layout = tuple[Any, ...]
"""Everything about some tensors that the arguments of a kernel depend on, but for the pointers."""
# Layouts of calls that an operator remembers; it forgets all when there are more.
MAX_KNOWN_CALLS = 1024


def layout_of(tensors: Sequence[Tensor]) -> Layout:
    """Return the layout of tensors: device, dtypes, shapes, strides, alignment, and which of them are the same."""
    pointers = [x.data_ptr() for x in tensors]
    # Triton compiles another kernel for pointers that are not multiples of 16.
    layouts = [
        (x.dtype, x.shape, x.stride(), pointer % 16, pointers.index(pointer))
        for x, pointer in zip(tensors, pointers, strict=True)
    ]
    return tensors[0].device, *layouts


class KnownCall(NamedTuple):
    """A call of one launch that can be repeated with other tensors of the same layout.

    A short call spends most of its time on the host: it finds the arguments of its kernel, and Triton finds the
    compiled kernel for them. Both depend on the layout alone, so they are remembered: see
    `python -m benchmarks map --cuda`.

    Attributes:
        start: starts the compiled kernel; takes all of its arguments.
        arguments: all arguments; None for those that are replaced.
        replaced: for each tensor among the arguments: its index in `arguments`, its index among inputs and results, and
            the strides that follow it; None instead of strides if the kernel takes the tensor alone.
        results: shape and dtype of each result.
    """

    start: Callable[..., None]
    arguments: list[Any]
    replaced: list[tuple[int, int, tuple[Any, ...] | None]]
    results: list[tuple[torch.Size, torch.dtype]]

    def repeat(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Start the kernel for other inputs, and return new results."""
        results = [inputs[0].new_empty(shape, dtype=dtype) for shape, dtype in self.results]
        self.start(*self.arguments_for([*inputs, *results]))
        return results

    def arguments_for(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Return all arguments of the kernel for other inputs and results."""
        arguments = self.arguments.copy()
        for position, place, strides in self.replaced:
            arguments[position] = tensors[place] if strides is None else (tensors[place], *strides)
        return arguments


class Launch(NamedTuple):
    """A launch with all of its arguments that has not been started, for a call that needs only one.

    Attributes:
        kernel: a function decorated with triton.jit.
        programs: number of programs.
        results: the results of the call, and other memory that the kernel writes to.
        operands: the first arguments of the kernel.
        tile: as for `launch`.
        settings: the other arguments of the kernel, and options.
    """

    kernel: Any
    programs: int
    results: list[Tensor]
    operands: Sequence[Tensor | Operand | None]
    tile: Tile
    settings: dict[str, Any]

    def start(self) -> Any:
        """Start the kernel, and return what `launch` returns."""
        return launch(self.kernel, self.programs, *self.operands, tile=self.tile, **self.settings)


def launch_or_repeat(
    known: dict[Layout, KnownCall],
    layout: Layout | None,
    inputs: Sequence[Tensor],
    prepare: Callable[[], Launch],
) -> list[Tensor]:
    """Run a call of one launch, and return its results.

    Args:
        known: the known calls of the operator.
        layout: everything that the arguments of the kernel depend on but for the pointers; None if the call must not be
            remembered, because they depend on more.
        inputs: the tensors of the call.
        prepare: returns the launch; called if no call of this layout is known.
    """
    if layout is not None and layout in known:
        return known[layout].repeat(inputs)
    first = prepare()
    compiled = first.start()
    if layout is not None and compiled is not None:
        call = _known_call(first, compiled[first.programs, 1, 1], inputs)
        if call is not None:
            if len(known) == MAX_KNOWN_CALLS:
                known.clear()
            known[layout] = call
    return first.results


def _known_call(first: Launch, start: Callable[..., None], inputs: Sequence[Tensor]) -> KnownCall | None:
    """Return a call that can be repeated, or None if its kernel takes another tensor, such as a copy of an input."""
    settings = first.settings | {"BM": first.tile.queries, "BN": first.tile.keys}
    arguments = [*first.operands, *(settings[name] for name in first.kernel.arg_names[len(first.operands) :])]
    places: dict[int, int] = {}
    for place, tensor in enumerate([*inputs, *first.results]):
        places.setdefault(tensor.data_ptr(), place)
    replaced: list[tuple[int, int, tuple[Any, ...] | None]] = []
    for position, argument in enumerate(arguments):
        tensor, *strides = argument if isinstance(argument, tuple) else (argument,)
        if not isinstance(tensor, Tensor):
            continue
        if tensor.data_ptr() not in places:
            return None
        replaced.append((position, places[tensor.data_ptr()], tuple(strides) if isinstance(argument, tuple) else None))
        arguments[position] = None
    return KnownCall(start, arguments, replaced, [(x.shape, x.dtype) for x in first.results])


def pick_tile(tiles: Sequence[Tile], tokens: int, batch: int) -> Tile:
    """Return the first tile that gives at least `MIN_PROGRAMS` programs, or the last tile.

    Args:
        tiles: possible tiles, the largest first.
        tokens: number of tokens in a batch element; a program has `Tile.queries` of them.
        batch: number of batch elements.
    """
    return next((tile for tile in tiles if batch * tokens >= tile.queries * MIN_PROGRAMS), tiles[-1])


def cdiv(count: int, size: int) -> int:
    """Return count / size, rounded up."""
    return -(-count // size)


def padded_size(size: int) -> int:
    """Return the size of an axis of an operand of tl.dot: the next power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


# --- Batch axes ------------------------------------------------------------------------------------------------


class Folded(NamedTuple):
    """Tensors with exactly two batch axes.

    Attributes:
        tensors: each (outer or 1, inner or 1, rows, columns).
        outer: size of the first batch axis.
        inner: size of the second batch axis.
        shapes: the batch shape of each tensor just before its axes were joined, (*batch or 1).
    """

    tensors: list[Tensor]
    outer: int
    inner: int
    shapes: list[Sequence[int]]


def fold(batch: Sequence[int], tensors: Sequence[Tensor]) -> Folded:
    """Reshape tensors to two batch axes, without a copy wherever strides allow it.

    Neighbouring batch axes that are shared by the same tensors form a group, and each group becomes one axis. With more
    than two groups, all but the last become the first axis: every tensor is expanded along them, which may copy it.

    Args:
        batch: the batch shape that all tensors broadcast to.
        tensors: each (*batch or 1, rows, columns).

    Returns:
        The folded tensors.
    """
    if len(batch) == 1:  # most calls
        return Folded([x.unsqueeze(0) for x in tensors], 1, batch[0], [x.shape[:-2] for x in tensors])
    groups = shared_groups(batch, tensors)
    if len(groups) > 2:
        expanded = [axis for group in groups[:-1] for axis in group]
        shapes = [[batch[axis] if axis in expanded else x.shape[axis] for axis in range(len(batch))] for x in tensors]
        tensors = [x.expand(*shape, *x.shape[-2:]) for x, shape in zip(tensors, shapes, strict=True)]
        groups = [expanded, groups[-1]]
    groups = [[]] * (2 - len(groups)) + groups  # an empty group is an axis of size 1

    def group_sizes(shape: Sequence[int]) -> list[int]:
        return [math.prod(shape[axis] for axis in group) for group in groups]

    outer, inner = group_sizes(batch)
    folded = [x.reshape(*group_sizes(x.shape), *x.shape[-2:]) for x in tensors]
    return Folded(folded, outer, inner, [x.shape[:-2] for x in tensors])


def shared_groups(batch: Sequence[int], tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return groups of neighbouring batch axes that the same tensors share; axes of size 1 belong to no group.

    Args:
        batch: the batch shape that all tensors broadcast to.
        tensors: each (*batch or 1, rows, columns).
    """
    groups: list[list[int]] = []
    last_shared: list[bool] = []
    for axis, size in enumerate(batch):
        if size == 1:
            continue
        is_shared = [tensor.shape[axis] == 1 for tensor in tensors]
        if groups and is_shared == last_shared:
            groups[-1].append(axis)
        else:
            groups.append([axis])
        last_shared = is_shared
    return groups


def unfold(grad: Tensor, batch: Sequence[int], source: Tensor) -> Tensor:
    """Return a gradient for every batch element as the gradient of its source, summed over shared axes.

    Args:
        grad: (outer, inner, rows, columns) or (outer * inner, rows, columns).
        batch: the batch shape.
        source: the tensor before `fold`.
    """
    grad = grad.reshape(*batch, *grad.shape[-2:])
    return grad if grad.shape == source.shape else grad.sum_to_size(source.shape)


# --- Operands and memory ----------------------------------------------------------------------------------------


def batch_operand(tensor: Tensor) -> Operand:
    """Return a tensor (outer or 1, inner or 1, ...) with the strides of its batch axes, 0 where it is shared."""
    (outer, inner), strides = tensor.shape[:2], tensor.stride()
    return tensor, strides[0] if outer > 1 else 0, strides[1] if inner > 1 else 0


def token_operand(tensor: Tensor) -> Operand:
    """Return a tensor (outer or 1, inner or 1, tokens, dim) with the strides of all axes, 0 for shared batch axes."""
    return *batch_operand(tensor), *tensor.stride()[2:]


def pair_operand(tensor: Tensor) -> Operand:
    """Return a tensor (outer or 1, inner or 1, queries or 1, keys or 1) with its strides, 0 for axes of size 1."""
    return tensor, *(0 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def empty_float32(like: Tensor, *shape: int) -> Tensor:
    """Return float32 memory on the device of another tensor."""
    return like.new_empty(shape, dtype=torch.float32)


def padded_length(count: int) -> int:
    """Return the length of transposed tokens, a multiple of every tile."""
    return cdiv(count, PADDING) * PADDING


def transposed(tokens: Tensor, fill: float) -> Tensor:
    """Return tokens (..., tokens, dim) as (..., dim, padded tokens) in float32, with `fill` behind the last token.

    A run of tokens is then a run of memory, and every tile ends inside of it.
    """
    count = tokens.shape[-2]
    length = padded_length(count)
    result = tokens.new_empty(*tokens.shape[:-2], tokens.shape[-1], length, dtype=torch.float32)
    result[..., :count].copy_(tokens.mT)
    if length > count:
        result[..., count:].fill_(fill)
    return result


# --- Masks -----------------------------------------------------------------------------------------------------


class KernelMask(NamedTuple):
    """A mask in the form that kernels support: allowed where all key masks allow, inside a band with one gap.

    Attributes:
        key_masks: masks that depend on keys alone.
        band: (low, high, gap_low, gap_high), bounds of the offset key position - query position.
    """

    key_masks: tuple[BoundMask, ...]
    band: tuple[int, int, int, int]

    def key_bias(self, keys: int, device: torch.device, bias: Tensor | None = None) -> Tensor | None:
        """Return the bias with minus infinity for keys that are not allowed, (*batch or 1, 1, keys or 1).

        Args:
            keys: number of keys.
            device: device of the result.
            bias: (*batch or 1, 1, keys or 1); None for 0.

        Returns:
            The bias; None without key masks and without a bias.
        """
        for mask in self.key_masks:
            allowed = mask.tile(slice(0, 1), slice(0, keys), device)
            bias = torch.where(allowed, 0.0 if bias is None else bias, -math.inf)
        return bias


def kernel_mask_of(mask: BoundMask | None) -> KernelMask | None:
    """Return a mask in the form that kernels support, or None if it has another form."""
    key_masks, (low, high, gap_low, gap_high) = [], NO_BAND
    for part in _conjuncts(mask):
        if not part.varies_by_query:
            key_masks.append(part)
        elif isinstance(part, Band):
            low, high = max(low, _clamp(part.low, -MAX_OFFSET)), min(high, _clamp(part.high, MAX_OFFSET))
        elif isinstance(part, Not) and isinstance(part.inner, Band) and gap_low > gap_high:
            gap_low, gap_high = _clamp(part.inner.low, -MAX_OFFSET), _clamp(part.inner.high, MAX_OFFSET)
        else:
            return None
    return KernelMask(tuple(key_masks), (low, high, gap_low, gap_high))


def _conjuncts(mask: BoundMask | None) -> list[BoundMask]:
    """Return the masks that a mask joins with "and"."""
    if mask is None:
        return []
    return _conjuncts(mask.left) + _conjuncts(mask.right) if isinstance(mask, And) else [mask]


def _clamp(end: int | None, unbounded: int) -> int:
    return unbounded if end is None else max(min(end, MAX_OFFSET), -MAX_OFFSET)
