"""Dot products of padded batches on a GPU, by torch's kernels for sequences of different lengths: no padding is read.

Such a kernel is given all tokens of a batch as one line, row after row, and where in it each piece begins. A row is
what has one length: an example, or a head of it where heads lie apart. Its real keys come first, its padding after.

Forward, a number of keys for each row is enough. The backward pass knows pieces alone: there a row is two of them, its
real keys, which all its queries see, and its padding, which no query sees, so that its gradients are written as 0.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.masks.placed import Both, Lengths, Placed
from regard.watched import is_plain, is_watched


def _kernel(name: str) -> Any:
    """None where torch has no such operator."""
    return getattr(getattr(torch.ops.aten, name, None), "default", None)


# torch calls them itself for nested tensors. The first takes all these dtypes; the second, for half precision, is
# faster, but its causal mask counts from the last key.
EFFICIENT, FLASH = (_kernel(name) for name in ("_efficient_attention_forward", "_flash_attention_forward"))
DEVICE, OLDEST = "cuda", (8, 0)
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALVES)
# What the kernels read at once, in bytes, and how wide a head they take.
ALIGNMENT, WIDEST = 16, 256
# A GPU's grid has so many pieces, and places in the line are 32-bit numbers.
MOST_PIECES, MOST_TOKENS = 2**16 - 1, 2**31 - 1
# Cuts that a mask keeps.
MOST_KEPT = 64


class Line(NamedTuple):
    """A padded batch as these kernels take it.

    query, key, value: (batch, heads, tokens, dim). mask: its lengths are (batch or 1, 1, 1, 1). columns: the rows of an
    example, which are its heads where they lie apart, and else one. learns: whether a gradient may be asked for.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Lengths
    causal: bool
    scale: float | None
    dropout: float
    columns: int
    learns: bool

    def pool(self) -> Tensor:
        """Output (batch, heads, queries, dim) (eq. 1 and 9)."""
        (batch, heads, queries, dim), scale, cut = self.query.shape, self.scale, self._cut()
        edges = cut.queries, cut.keys, queries, self.key.shape[2]
        if self.query.dtype in HALVES and not self.causal:
            tokens = self._laid(self.query)[0], self._laid(self.key)[0], self._laid(self.value)[0]
            output = FLASH(*tokens, *edges, self.dropout, False, False, scale=scale, seqused_k=cut.used)[0]
        else:
            # The kernel writes no gradient for queries without keys: what is there must not get through.
            stop = cut.is_empty if self.learns and self.query.requires_grad and cut.has_empty else None
            tokens = self._laid(self.query, stop), self._laid(self.key), self._laid(self.value)
            how = self.dropout, int(self.causal), self.learns
            output = EFFICIENT(*tokens, None, *edges, *how, scale=scale, seqlen_k=cut.used)[0]
        if self.columns > 1:
            return output.view(batch, heads, queries, dim)
        return output.view(batch, queries, heads, dim).transpose(1, 2)

    def _laid(self, tokens: Tensor, stop: Tensor | None = None) -> Tensor:
        """(batch, heads, tokens, dim) as one line, (1, rows * tokens, heads or 1, dim): a view.

        stop: bool (batch or 1, 1, 1, 1), which examples are 0 in it, and get no gradient.
        """
        batch, heads, _, dim = self.query.shape
        tokens = tokens if self.columns > 1 else tokens.transpose(1, 2)
        tokens = tokens if stop is None else tokens.masked_fill(stop, 0.0)
        return tokens if batch == 1 else tokens.view(1, -1, heads // self.columns, dim)

    def _cut(self) -> "Cut":
        """Made once for a mask and each stream, on which it will be there before it is read.

        A graph that is being recorded makes its own, since it may outlive the mask.
        """
        (batch, _, queries, _), keys, device = self.query.shape, self.key.shape[2], self.query.device
        sizes, stream = (batch, self.columns, queries, keys, device, self.learns), _stream(device)
        if stream is None:
            return _cut(self.mask.lengths, *sizes)
        kept = self.mask.kept.get((sizes, stream))
        if kept is None:
            # What is kept belongs to no mode that happens to be on.
            with torch.inference_mode(False), torch._C.DisableTorchFunction():
                cut = _cut(self.mask.lengths, *sizes)
                kept = cut._replace(has_empty=Late(cut.is_empty.any())) if self.learns else cut
            if len(self.mask.kept) == MOST_KEPT:  # the steps of a decoder have a number of keys each
                self.mask.kept.clear()
            self.mask.kept[sizes, stream] = kept
        return kept


def line_of(
    query: Tensor, key: Tensor, value: Tensor, mask: Placed, scale: float | None, dropout: float = 0.0
) -> Line | None:
    """Inputs (batch, heads, tokens, dim) under a mask of lengths, causal or not; None where the kernels do not fit."""
    if query.device.type != DEVICE or query.dtype not in DTYPES:
        return None
    lengths, causal = _lengths_of(mask)
    if lengths is None or lengths.lengths.shape[1:] != (1, 1, 1) or not _is_able(query.device) or is_watched():
        return None
    strides = query.stride(), key.stride(), value.stride()
    columns = _columns(query.shape, key.shape, value.shape, *strides, query.element_size())
    if columns is None or not (is_plain(query) and is_plain(key) and is_plain(value)):
        return None
    if query.data_ptr() % ALIGNMENT or key.data_ptr() % ALIGNMENT or value.data_ptr() % ALIGNMENT:
        return None
    learns = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return Line(query, key, value, lengths, causal, scale, dropout, columns, learns)


Sizes = tuple[int, ...]


@lru_cache(maxsize=1024)
def _columns(
    query: Sizes, key: Sizes, value: Sizes, query_steps: Sizes, key_steps: Sizes, value_steps: Sizes, itemsize: int
) -> int | None:
    """How many rows an example has, of tokens with these shapes and strides; None where they do not lie in a line."""
    if len(query) != 4 or key != value or 0 in query or 0 in key:
        return None
    (batch, heads, queries, dim), keys = query, key[2]
    if key != (batch, heads, keys, dim) or dim > WIDEST:
        return None
    layouts = ((query_steps, queries), (key_steps, keys), (value_steps, keys))
    apart = ALIGNMENT // itemsize
    if any(steps[3] != 1 or any(step % apart for step in steps[:3]) for steps, _ in layouts):
        return None
    if batch == 1 or all(steps[0] == count * steps[2] for steps, count in layouts):
        columns = 1  # each example begins where the one before would have its next token, whatever heads do
    elif all(steps == (heads * count * dim, count * dim, dim, 1) for steps, count in layouts):
        columns = heads
    else:
        return None
    is_short = batch * columns * max(queries, keys) <= MOST_TOKENS and 2 * batch * columns <= MOST_PIECES
    return columns if is_short else None


class Cut(NamedTuple):
    """Where the pieces of a line begin, on its device.

    queries, keys: the edges of pieces, int32 (pieces + 1,). used: how many keys of a piece are real, where it has
    padding, too. is_empty: whether an example has no keys, bool (batch or 1, 1, 1, 1). has_empty: whether one may be.
    """

    queries: Tensor
    keys: Tensor
    used: Tensor | None
    is_empty: Tensor
    has_empty: "Late | bool"


class Late:
    """A yes or no that is on its way from the device: yes until it has arrived, so that no call waits for it."""

    def __init__(self, asked: Tensor) -> None:
        """asked: bool, without axes."""
        self._answer = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=True)
        self._answer.copy_(asked, non_blocking=True)
        self._arrival = torch.cuda.Event()
        self._arrival.record(torch.cuda.current_stream(asked.device))

    def __bool__(self) -> bool:
        return not self._arrival.query() or bool(self._answer)


def _cut(lengths: Tensor, batch: int, columns: int, queries: int, keys: int, device: torch.device, learns: bool) -> Cut:
    """For whole rows, of which some keys are real; or, if something learns, for two pieces a row."""
    real, is_empty = lengths.long().clamp(0, keys).int().expand(batch, columns, 1, 1).reshape(-1), lengths <= 0
    row = torch.arange(len(real) + 1, device=device, dtype=torch.int32)
    starts = row * keys
    if not learns:
        return Cut(row * queries, starts, real, is_empty, has_empty=True)
    ends = torch.stack((starts[:-1] + real, starts[1:]), 1).view(-1)
    # Padding has no queries: it begins and ends where the queries of its row end.
    return Cut((row * queries).repeat_interleave(2)[1:], torch.cat((row[:1], ends)), None, is_empty, has_empty=True)


def _lengths_of(mask: Placed) -> tuple[Lengths | None, bool]:
    """The lengths of a mask that says no more than these, and whether it is causal beside them."""
    if isinstance(mask, Both):
        one, other = (mask.left, mask.right) if isinstance(mask.left, Lengths) else (mask.right, mask.left)
        return (one, True) if isinstance(one, Lengths) and other.is_plain_causal else (None, False)
    return (mask, False) if isinstance(mask, Lengths) else (None, False)


def _is_able(device: torch.device) -> bool:
    """Whether the kernels are there, and nobody has forbidden them."""
    cuda = torch.backends.cuda
    return cuda.mem_efficient_sdp_enabled() and cuda.flash_sdp_enabled() and _has_kernels(device)


@lru_cache
def _has_kernels(device: torch.device) -> bool:
    is_there = EFFICIENT is not None and FLASH is not None and torch.version.hip is None
    return is_there and torch.cuda.get_device_capability(device) >= OLDEST


def _stream(device: torch.device) -> int | None:
    """The stream that will read what is made now; None while it is recorded."""
    is_recorded = torch.cuda.is_current_stream_capturing()
    return None if is_recorded else torch._C._cuda_getCurrentRawStream(device.index)
