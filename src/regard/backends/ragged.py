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

from regard.backends.problem import may_be_differentiated
from regard.keeping import find
from regard.masks.placed import Lengths, Placed, condition_on_keys
from regard.watched import is_plain, is_watched


def _kernel(name: str) -> Any:
    """None where torch has no such operator."""
    return getattr(getattr(torch.ops.aten, name, None), "default", None)


# torch calls them itself for nested tensors. The first takes all these dtypes, but in pieces it drops other weights
# backward than forward; the second, for half precision, is faster, but its causal mask counts from the last key.
EFFICIENT, FLASH = (_kernel(name) for name in ("_efficient_attention_forward", "_flash_attention_forward"))
DEVICE, OLDEST = "cuda", (8, 0)
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALVES)
# Below so many pairs of tokens, without a gradient and with one, blank padding and a mask are faster: there the host
# decides, which has fewer operations to launch, or in half precision a kernel that is made for them.
FEW_PAIRS = {torch.float32: (2**21, 2**24), torch.bfloat16: (2**26, 2**27), torch.float16: (2**26, 2**27)}
# What the kernels read at once, in bytes, and how wide a head they take. In half precision some GPUs have no gradient
# of wide ones.
ALIGNMENT, WIDEST, WIDEST_LEARNING = 16, 256, 192
# A GPU's grid has so many pieces, and places in the line are 32-bit numbers.
MOST_PIECES, MOST_TOKENS = 2**16 - 1, 2**31 - 1
# The pieces of some sizes, for all masks.
PIECES: dict[Any, Any] = {}


class Line(NamedTuple):
    """A padded batch as these kernels take it.

    query, key, value: (batch, heads, tokens, dim). mask: its lengths are (batch or 1, 1, 1, 1). rows_each: how many
    rows an example is, as many as heads where these lie apart, and else one. learns: whether a gradient may be asked
    for.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Lengths
    causal: bool
    scale: float | None
    dropout: float
    rows_each: int
    learns: bool

    def pool(self) -> Tensor:
        """Output (batch, heads, queries, dim) (eq. 1 and 9)."""
        (batch, heads, queries, dim), scale, cut = self.query.shape, self.scale, self._cut()
        query, key, value = self.query, self.key, self.value
        if self.rows_each == 1:
            query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        is_flash = _takes_flash(query, self.causal)
        if cut.is_empty is not None and not is_flash:
            # The other kernel writes no gradient for queries without keys: what is there must not get through.
            query = query.masked_fill(cut.is_empty, 0.0)
        if batch > 1:
            line = 1, -1, heads // self.rows_each, dim
            query, key, value = query.view(line), key.view(line), value.view(line)
        edges = cut.queries, cut.keys, queries, self.key.shape[2]
        if is_flash:
            tokens = query[0], key[0], value[0]
            output = FLASH(*tokens, *edges, self.dropout, False, False, scale=scale, seqused_k=cut.used)[0]
        else:
            how = 0.0, int(self.causal), self.learns
            output = EFFICIENT(query, key, value, None, *edges, *how, scale=scale, seqlen_k=cut.used)[0]
        if self.rows_each > 1:
            return output.view(batch, heads, queries, dim)
        return output.view(batch, queries, heads, dim).transpose(1, 2)

    def _cut(self) -> "Cut":
        """Made once for a mask."""
        (batch, _, queries, _), keys, device = self.query.shape, self.key.shape[2], self.query.device
        sizes = batch, self.rows_each, queries, keys, device, self.learns

        def cut() -> Cut:
            return find(PIECES, sizes, device, lambda: _pieces(*sizes)).cut(self.mask.lengths)

        return find(self.mask.kept, sizes, device, cut)


def line_of(
    query: Tensor, key: Tensor, value: Tensor, mask: Placed, scale: float | None, dropout: float = 0.0
) -> Line | None:
    """Inputs (batch, heads, tokens, dim) under a mask of lengths, causal or not; None where the kernels do not fit."""
    if query.device.type != DEVICE or query.dtype not in DTYPES:
        return None
    lengths, causal = condition_on_keys(mask)
    if type(lengths) is not Lengths or lengths.lengths.shape[1:] != (1, 1, 1):
        return None
    if not is_able(query.device) or is_watched():
        return None
    strides = query.stride(), key.stride(), value.stride()
    rows_each = _rows_each(query.shape, key.shape, value.shape, *strides, query.element_size())
    if rows_each is None or (dropout and not _takes_flash(query, causal)):
        return None
    learns = may_be_differentiated(query, key, value)
    if not causal and are_few(query, key, learns):
        return None
    if learns and query.shape[3] > WIDEST_LEARNING and _takes_flash(query, causal):
        return None
    if not (is_plain(query) and is_plain(key) and is_plain(value)):
        return None
    if query.data_ptr() % ALIGNMENT or key.data_ptr() % ALIGNMENT or value.data_ptr() % ALIGNMENT:
        return None
    return Line(query, key, value, lengths, causal, scale, dropout, rows_each, learns)


def are_few(query: Tensor, key: Tensor, learns: bool) -> bool:
    """Whether pairs of tokens (batch, heads, tokens, dim) are so few that the host decides how long a call takes."""
    _, _, keys, dim = key.shape
    return query.numel() // dim * keys < FEW_PAIRS.get(query.dtype, FEW_PAIRS[torch.float32])[learns]


Sizes = tuple[int, ...]


@lru_cache(maxsize=1024)
def _rows_each(
    query: Sizes, key: Sizes, value: Sizes, query_steps: Sizes, key_steps: Sizes, value_steps: Sizes, itemsize: int
) -> int | None:
    """How many rows an example has, of tokens with these shapes and strides; None where they do not lie in a line."""
    if len(query) != 4 or key != value or 0 in query or 0 in key:
        return None
    (batch, heads, queries, dim), keys = query, key[2]
    unit = ALIGNMENT // itemsize
    if key != (batch, heads, keys, dim) or dim > WIDEST or dim % unit:
        return None
    layouts = ((query_steps, queries), (key_steps, keys), (value_steps, keys))
    if any(steps[3] != 1 or any(step % unit for step in steps[:3]) for steps, _ in layouts):
        return None
    if batch == 1 or all(steps[0] == count * steps[2] for steps, count in layouts):
        rows_each = 1  # each example begins where the one before would have its next token, whatever heads do
    elif all(steps == (heads * count * dim, count * dim, dim, 1) for steps, count in layouts):
        rows_each = heads
    else:
        return None
    is_short = batch * rows_each * max(queries, keys) <= MOST_TOKENS and 2 * batch * (rows_each + 1) <= MOST_PIECES
    return rows_each if is_short else None


class Cut(NamedTuple):
    """Where the pieces of a line begin, on its device.

    queries, keys: the edges of pieces, int32 (pieces + 1,). used: how many keys of a piece are real, where it has
    padding, too. is_empty: whether an example has no keys, bool (batch or 1, 1, 1, 1), where something learns.
    """

    queries: Tensor
    keys: Tensor
    used: Tensor | None = None
    is_empty: Tensor | None = None


class Pieces(NamedTuple):
    """What a line of some sizes is cut into, as far as lengths do not decide; int32.

    queries: edges of pieces. keys: the same; or, if something learns, the first key of the row that an edge belongs to.
    least, most: what lengths are cut to; (batch, rows_each, 1, 1), or for each edge (batch, rows_each + 1, 2, 1).
    """

    queries: Tensor
    keys: Tensor
    least: Tensor
    most: Tensor
    learns: bool

    def cut(self, lengths: Tensor) -> Cut:
        """lengths: integer (batch or 1, 1, 1, 1), of any size."""
        real = torch.clamp(lengths, self.least, self.most, out=torch.empty_like(self.least)).view(-1)
        if self.learns:
            return Cut(self.queries, real.add_(self.keys), is_empty=lengths <= 0)
        return Cut(self.queries, self.keys, used=real)


def _pieces(batch: int, rows_each: int, queries: int, keys: int, device: torch.device, learns: bool) -> Pieces:
    """Whole rows; or, if something learns, two pieces a row."""
    row = torch.arange(batch * rows_each + 1, device=device, dtype=torch.int32)
    if not learns:
        least = row.new_zeros(batch, rows_each, 1, 1)
        return Pieces(row * queries, row * keys, least, least + keys, learns)
    # A row has two edges, the ends of its real keys and of its padding, which has no queries. An example begins with
    # two edges more, at its start: so all examples have as many, and the very first edge is among them.
    row = row[:-1].view(batch, rows_each, 1, 1).expand(-1, -1, 2, -1)
    begin = row[:, :1]
    most = torch.cat((torch.zeros_like(begin), torch.full_like(row, keys)), 1)
    least = most.clone()
    least[:, :, 0] = 0
    ends, starts = torch.cat((begin, row + 1), 1) * queries, torch.cat((begin, row), 1) * keys
    return Pieces(ends.view(-1), starts.view(-1), least, most, learns)


def _takes_flash(query: Tensor, causal: bool) -> bool:
    return query.dtype in HALVES and not causal


def is_able(device: torch.device) -> bool:
    """Whether torch's fused kernels are there, and nobody has forbidden them."""
    cuda = torch.backends.cuda
    return cuda.mem_efficient_sdp_enabled() and cuda.flash_sdp_enabled() and _has_kernels(device)


@lru_cache
def _has_kernels(device: torch.device) -> bool:
    is_there = EFFICIENT is not None and FLASH is not None and torch.version.hip is None
    is_built = is_there and torch.backends.cuda.is_flash_attention_available()
    return is_built and torch.cuda.get_device_capability(device) >= OLDEST
