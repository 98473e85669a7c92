"""The key/value cache of a decoder: keys and values that a layer has prepared once."""

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
"""Prepares key, value and the position of the first key, as the layer does once for each token."""


@dataclass(frozen=True, eq=False, repr=False)
class Memory:
    """Prepared keys and their values, as `remember` returns them. It is immutable: every method returns a new one.

    The queries of a recall are the last tokens: the last query has the position of the last key. So a causal decoder
    appends its new token and then recalls with it, and `Mask.causal()` needs no align.

    Attributes:
        key: (*batch, keys, dim), projected and prepared by the layer and its score.
        value: (*batch, keys, value_dim).
        mask: which keys each query may attend to, or None.
        batch_axes: number of leading axes that the caller gave; heads come after them.
        prepare: the layer's preparation of new keys and values.
        padding_is_zero: whether the padding of key and value holds 0, so that recalls need not zero it.

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
        """Return the memory with more keys at its end. A padding mask allows them to all queries.

        Args:
            key: (*batch, new keys, key_dim), as for `remember`; only these are prepared.
            value: (*batch, new keys, value_dim); the key by default.

        Returns:
            The longer memory.

        Raises:
            RegardError: if the new tokens do not fit the memory, or if its mask cannot cover more keys.
        """
        new_key, new_value = self.prepare(key, value, self.keys)
        # A memory made outside of autocast keeps its dtype.
        if is_cast_by_autocast(new_key) and is_cast_by_autocast(self.key):
            new_key, new_value = new_key.to(self.key.dtype), new_value.to(self.value.dtype)
        for argument, new, old in (("key", new_key, self.key), ("value", new_value, self.value)):
            _check_fits(argument, new, old)
        mask = None if self.mask is None else self.mask.grow(self.keys, new_key.shape[-2])
        longer_key, longer_value = torch.cat((self.key, new_key), -2), torch.cat((self.value, new_value), -2)
        return replace(self, key=longer_key, value=longer_value, mask=mask)

    def select(self, rows: Tensor | Sequence[int]) -> "Memory":
        """Return the memory of some rows of the first batch axis, as beam search needs it.

        Args:
            rows: numbers of rows, int64 (rows), in any order; a row may occur more than once.

        Returns:
            The memory of these rows.

        Raises:
            RegardError: if there are no such rows, or no batch axis.
        """
        if self.batch_axes == 0:
            raise RegardError(
                "rows",
                got=f"{rows!r:.60}, for a memory without a batch axis",
                needed="a memory with at least one batch axis",
                repair="Call remember with key[None] and value[None], a batch of one.",
            )
        given = rows
        try:
            rows = torch.as_tensor(rows, device=self.key.device)
        except (TypeError, ValueError, RuntimeError):
            rows = self.key  # not integers: refused below
        rows = rows.long() if rows.numel() == 0 else rows
        if rows.dtype != torch.int64 or rows.ndim != 1:
            raise RegardError(
                "rows",
                got=describe(given),
                needed="row numbers: an int64 tensor with one axis",
                repair="Pass for example torch.tensor([0, 0, 2]).",
            )
        size = max(self.key.shape[0], self.value.shape[0])
        if can_read_values(rows) and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < size:
            raise RegardError(
                "rows",
                got=f"numbers from {int(rows.min())} to {int(rows.max())}",
                needed=f"numbers from 0 to {size - 1}, the rows of the memory",
                repair="Call remember with one row of keys for each sequence before selecting rows.",
            )
        key, value = (x if x.shape[0] < size else x.index_select(0, rows) for x in (self.key, self.value))
        mask = None if self.mask is None else self.mask.select(rows, self.key.ndim - 2)
        return replace(self, key=key, value=value, mask=mask)

    def without_padding(self) -> "Memory":
        """Return the memory with 0 for keys and values that are padding.

        Padding may hold any finite number, whose score could overflow, so every call of attention zeroes it. Here it is
        done once for all recalls.
        """
        real = None if self.mask is None else self.mask.real_keys(tuple(self.key.shape[: self.batch_axes]), self.keys)
        if real is None or real.device != self.key.device or self.value.shape[:-1] != self.key.shape[:-1]:
            return self
        heads = (1,) * (self.key.ndim - 2 - self.batch_axes)
        padding = Padding(real.reshape(*real.shape[:-1], *heads, self.keys, 1))
        key, value = padding.zero(self.key), padding.zero(self.value)
        return replace(self, key=key, value=value, mask=Mask.keys(real), padding_is_zero=True)

    def check_owner(self, layer: object) -> None:
        """Raise if another layer made this memory: its sizes may fit, but its projections are different."""
        if getattr(self.prepare, "__self__", layer) is not layer:
            raise RegardError(
                "memory",
                got=f"{self}, which another layer made",
                needed="a memory that remember of this layer returned",
                repair="Keep one memory per layer.",
            )

    def __repr__(self) -> str:
        """Return the sizes."""
        return f"Memory(keys={self.keys}, key={describe(self.key)}, value={describe(self.value)}, mask={self.mask})"


def check_pairs(key: Tensor, value: Tensor) -> None:
    """Raise unless keys and values fit together; called before there are queries."""
    check_tensor("key", key)
    check_inputs(key, key, value)


def _check_fits(argument: str, new: Tensor, old: Tensor) -> None:
    """Raise unless prepared tokens can be appended to those of the memory."""
    same_axes = new.shape[:-2] == old.shape[:-2] and new.shape[-1] == old.shape[-1]
    if not same_axes or new.dtype != old.dtype or new.device != old.device:
        raise RegardError(
            argument,
            got=f"{describe(new)} after preparation, for a memory of {describe(old)}",
            needed="the batch axes, sizes, dtype and device of the memory",
            repair="Append to all rows at once, or choose rows first with memory.select(rows).",
        )
