"""`Memory`: the key/value cache of a decoder, which holds keys and values that a layer has prepared once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.checks import check_inputs, check_tensor, describe, is_cast_by_autocast
from regard.errors import RegardError
from regard.masks import Mask
from regard.masks.bound import Padding
from regard.torch_compat import can_read_values

Prepare = Callable[[Tensor, Tensor | None, int], tuple[Tensor, Tensor]]
"""Takes key, value (None for the key) and the position of the first key; returns prepared keys and values."""


@dataclass(frozen=True, eq=False, repr=False)
class Memory:
    """Prepared keys and values, as `remember` of a layer returns them. Immutable: every method returns a new Memory.

    The last query of a recall has the position of the last key. So a causal decoder appends its new token and then
    recalls with it, and `Mask.causal()` does not need the argument `align`.

    Attributes:
        key: (*batch, keys, dim), projected and prepared by the layer and its score.
        value: (*batch, keys, value_dim).
        mask: which keys each query may attend to, or None.
        batch_axes: number of batch axes of the caller's tokens, so without the heads of a layer.
        prepare: the method of the layer that prepares new keys and values.
        padding_is_zero: whether padded keys and values are 0 already, so that recalls need not zero them.

    >>> import torch, regard
    >>> layer = regard.MultiHeadAttention(8, 2)
    >>> tokens = torch.randn(1, 3, 8)
    >>> memory = layer.remember(tokens[:, :1], mask=regard.Mask.causal())
    >>> for token in (tokens[:, 1:2], tokens[:, 2:]):
    ...     memory = memory.append(token)
    ...     output = layer.recall(token, memory)
    >>> len(memory), output.shape
    (3, torch.Size([1, 1, 8]))
    """

    key: Tensor
    value: Tensor
    mask: Mask | None
    batch_axes: int
    prepare: Prepare
    padding_is_zero: bool = False

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.key.shape[-2]

    def __len__(self) -> int:
        """Return the number of keys."""
        return self.keys

    def append(self, key: Tensor, value: Tensor | None = None) -> "Memory":
        """Return the memory with more keys at its end. A padding mask allows the new keys for all queries.

        Args:
            key: (*batch, new keys, key_dim), as for `remember`.
            value: (*batch, new keys, value_dim); the key by default.

        Returns:
            The longer memory. Only the new keys are prepared.

        Raises:
            RegardError: if the new tokens do not fit the memory, or if its mask cannot be extended to more keys.
        """
        new_key, new_value = self.prepare(key, value, self.keys)
        # A memory that was made outside of autocast keeps its dtype.
        if is_cast_by_autocast(new_key) and is_cast_by_autocast(self.key):
            new_key, new_value = new_key.to(self.key.dtype), new_value.to(self.value.dtype)
        for argument, new, old in (("key", new_key, self.key), ("value", new_value, self.value)):
            _check_can_append(argument, new, old)
        mask = None if self.mask is None else self.mask.grow(self.keys, new_key.shape[-2])
        longer_key, longer_value = torch.cat((self.key, new_key), -2), torch.cat((self.value, new_value), -2)
        return replace(self, key=longer_key, value=longer_value, mask=mask)

    def select(self, rows: Tensor | Sequence[int]) -> "Memory":
        """Return the memory of selected examples, as beam search needs it.

        Args:
            rows: positions of examples along the first batch axis, int64 (rows,), in any order; an example may be
                selected more than once.

        Returns:
            The memory of these examples.

        Raises:
            RegardError: if `rows` are not positions of examples, or if the memory has no batch axis.
        """
        if self.batch_axes == 0:
            raise RegardError(
                "rows",
                got=f"{rows!r:.60}, for a memory without a batch axis",
                needed="a memory with at least one batch axis",
                repair="Call remember with key[None] and value[None], a batch of one.",
            )
        size = max(self.key.shape[0], self.value.shape[0])
        rows = _row_indices(rows, self.key.device)
        if can_read_values(rows) and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < size:
            raise RegardError(
                "rows",
                got=f"numbers from {int(rows.min())} to {int(rows.max())}",
                needed=f"numbers from 0 to {size - 1}, the examples of the memory",
                repair="Call remember with the keys of all examples before selecting some of them.",
            )
        # A tensor of size 1 that all examples share stays as it is.
        key, value = (x if x.shape[0] < size else x.index_select(0, rows) for x in (self.key, self.value))
        mask = None if self.mask is None else self.mask.select(rows, self.key.ndim - 2)
        return replace(self, key=key, value=value, mask=mask)

    def without_padding(self) -> "Memory":
        """Return the memory with padded keys and values set to 0, if its mask is a padding mask.

        Every call of attention sets padding to 0, because padding may hold any finite number, whose score could
        overflow. This method does it once for all recalls.

        Returns:
            The memory with zeroed padding and the mask `Mask.keys` of the real keys, also for a `Mask.lengths`; the
            same memory unless its mask is one of these two and has an entry for each example.
        """
        real = None if self.mask is None else self.mask.real_keys(tuple(self.key.shape[: self.batch_axes]), self.keys)
        if real is None or real.device != self.key.device or self.value.shape[:-1] != self.key.shape[:-1]:
            return self
        heads = (1,) * (self.key.ndim - 2 - self.batch_axes)
        padding = Padding(real.reshape(*real.shape[:-1], *heads, self.keys, 1))
        key, value = padding.zero(self.key), padding.zero(self.value)
        return replace(self, key=key, value=value, mask=Mask.keys(real), padding_is_zero=True)

    def check_owner(self, layer: object) -> None:
        """Raise if another layer made this memory. Its sizes may fit, but its projections are different.

        Args:
            layer: the layer that recalls.

        Raises:
            RegardError: if the memory was made by another layer.
        """
        # `prepare` is a method of the layer that made this memory. A plain function does not name a layer to compare.
        if getattr(self.prepare, "__self__", layer) is not layer:
            raise RegardError(
                "memory",
                got=f"{self}, which another layer made",
                needed="a memory that remember of this layer returned",
                repair="Call remember of this layer, and keep one memory for each layer.",
            )

    def __repr__(self) -> str:
        """Return the number of keys, the tensors and the mask."""
        return f"Memory(keys={self.keys}, key={describe(self.key)}, value={describe(self.value)}, mask={self.mask})"


def check_pairs(key: Tensor, value: Tensor) -> None:
    """Raise unless keys and values fit together. Called when there are no queries yet.

    Args:
        key: (*batch, keys, key_dim).
        value: (*batch, keys, value_dim).

    Raises:
        RegardError: as for `check_inputs`.
    """
    check_tensor("key", key)
    check_inputs(key, key, value)


def _row_indices(rows: Tensor | Sequence[int], device: torch.device) -> Tensor:
    """Return positions of examples as an int64 tensor with one axis, or raise a RegardError."""
    try:
        indices = torch.as_tensor(rows, device=device)
    except (TypeError, ValueError, RuntimeError):
        indices = None
    if indices is not None and indices.numel() == 0:
        indices = indices.long()  # torch makes a float32 tensor of an empty list
    if indices is None or indices.dtype != torch.int64 or indices.ndim != 1:
        raise RegardError(
            "rows",
            got=describe(rows),
            needed="positions of examples: an int64 tensor with one axis",
            repair="Pass for example torch.tensor([0, 0, 2]).",
        )
    return indices


def _check_can_append(argument: str, new: Tensor, old: Tensor) -> None:
    """Raise a RegardError unless prepared tokens can be appended to those of the memory."""
    has_same_sizes = new.shape[:-2] == old.shape[:-2] and new.shape[-1] == old.shape[-1]
    if not has_same_sizes or new.dtype != old.dtype or new.device != old.device:
        raise RegardError(
            argument,
            got=f"{describe(new)} after preparation, for a memory of {describe(old)}",
            needed="the batch axes, sizes, dtype and device of the memory",
            repair="Append tokens for all examples of the memory, or first choose examples with memory.select(rows).",
        )
