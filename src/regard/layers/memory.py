"""What a layer keeps of keys and values: prepared once, appended to, selected from, never computed again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.backends.problem import blank
from regard.errors import RegardError
from regard.masks import Mask
from regard.shapes import check_inputs, check_tensor, describe, is_cast
from regard.watched import is_readable

Prepare = Callable[[Tensor, Tensor | None, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False, repr=False)
class Memory:
    """Prepared keys and their values, as `remember` returns them; immutable, every verb returns a new one.

    Queries that recall a memory stand at its end: the last query at the position of the last key. So a causal
    decoder appends the token it has just read and then recalls with it, and `Mask.causal()` needs no align.

    key: (*batch, keys, dim), whatever the layer's projections and score made of the keys.
    value: (*batch, keys, value_dim).
    mask: who may attend to whom, or None.
    batch_axes: how many of the leading axes are the caller's; heads come after them.
    prepare: what makes (key, value, position of the first) ready to be kept: the layer's own work per token.
    is_blanked: whether padding holds 0 in key and value, so that no recall has to see to it.
    """

    key: Tensor
    value: Tensor
    mask: Mask | None
    batch_axes: int
    prepare: Prepare
    is_blanked: bool = False

    @property
    def keys(self) -> int:
        """How many keys are remembered."""
        return self.key.shape[-2]

    def __len__(self) -> int:
        return self.keys

    def append(self, key: Tensor, value: Tensor | None = None) -> "Memory":
        """The memory with more keys at its end, which everybody may see as far as a causal mask allows.

        Args:
            key: (*batch, new keys, key_dim), as `remember` takes them; only these are prepared.
            value: (*batch, new keys, value_dim); the key by default.
        """
        new_key, new_value = self.prepare(key, value, self.keys)
        if is_cast(new_key) and is_cast(self.key):  # what was remembered outside of autocast keeps its dtype
            new_key, new_value = new_key.to(self.key.dtype), new_value.to(self.value.dtype)
        for argument, new, old in (("key", new_key, self.key), ("value", new_value, self.value)):
            _check_fits(argument, new, old)
        mask = None if self.mask is None else self.mask.grow(self.keys, new_key.shape[-2])
        longer_key, longer_value = torch.cat((self.key, new_key), -2), torch.cat((self.value, new_value), -2)
        return replace(self, key=longer_key, value=longer_value, mask=mask)

    def select(self, rows: Tensor | Sequence[int]) -> "Memory":
        """The memory of the chosen rows of the first batch axis, in that order, as beams need it.

        rows: int64 (chosen); a row may be chosen any number of times.
        """
        if self.batch_axes == 0:
            raise RegardError(
                "rows",
                got=f"{rows!r:.60}, for a memory without a batch axis",
                needed="a memory with at least one batch axis",
                repair="Remember key[None] and value[None], a batch of one.",
            )
        given = rows
        try:
            rows = torch.as_tensor(rows, device=self.key.device)
        except (TypeError, ValueError, RuntimeError):
            rows = self.key  # no whole numbers: refused below
        rows = rows.long() if rows.numel() == 0 else rows
        if rows.dtype != torch.int64 or rows.ndim != 1:
            raise RegardError(
                "rows",
                got=describe(given),
                needed="row numbers: an int64 tensor with one axis",
                repair="Pass for example torch.tensor([0, 0, 2]).",
            )
        size = max(self.key.shape[0], self.value.shape[0])
        if is_readable(rows) and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < size:
            raise RegardError(
                "rows",
                got=f"numbers from {int(rows.min())} to {int(rows.max())}",
                needed=f"numbers from 0 to {size - 1}, the rows that are remembered",
                repair="Remember keys with a row for each sequence before selecting among them.",
            )
        key, value = (x if x.shape[0] < size else x.index_select(0, rows) for x in (self.key, self.value))
        mask = None if self.mask is None else self.mask.select(rows, self.key.ndim - 2)
        return replace(self, key=key, value=value, mask=mask)

    def without_padding(self) -> "Memory":
        """The same memory with 0 where its mask says that tokens are padding, and the mask read once.

        Padding may hold any finite garbage, whose score could overflow: every call of attention guards against it,
        and a memory that is recalled many times does so here, once.
        """
        real = None if self.mask is None else self.mask.real_keys(tuple(self.key.shape[: self.batch_axes]), self.keys)
        if real is None or real.device != self.key.device or self.value.shape[:-1] != self.key.shape[:-1]:
            return self
        heads = (1,) * (self.key.ndim - 2 - self.batch_axes)
        by_token = real.reshape(*real.shape[:-1], *heads, self.keys, 1)
        key, value = blank(self.key, by_token), blank(self.value, by_token)
        return replace(self, key=key, value=value, mask=Mask.keys(real), is_blanked=True)

    def check_owner(self, layer: object) -> None:
        """Refuse what another layer remembered: its sizes may fit, its numbers mean something else."""
        if getattr(self.prepare, "__self__", layer) is not layer:
            raise RegardError(
                "memory",
                got=f"{self}, which another layer remembered",
                needed="what this layer's own remember returned",
                repair="Keep a memory for each layer.",
            )

    def __repr__(self) -> str:
        """Sizes, not numbers."""
        return f"Memory(keys={self.keys}, key={describe(self.key)}, value={describe(self.value)}, mask={self.mask})"


def check_pairs(key: Tensor, value: Tensor) -> None:
    """Check keys and values before a layer prepares them; there are no queries yet."""
    check_tensor("key", key)
    check_inputs(key, key, value)


def _check_fits(argument: str, new: Tensor, old: Tensor) -> None:
    """Refuse what would be concatenated into nonsense, or not at all."""
    same_axes = new.shape[:-2] == old.shape[:-2] and new.shape[-1] == old.shape[-1]
    if not same_axes or new.dtype != old.dtype or new.device != old.device:
        raise RegardError(
            argument,
            got=f"{describe(new)} after preparation, for a memory of {describe(old)}",
            needed="the batch axes, dtype and device of what is remembered",
            repair="Append to every row at once; memory.select(rows) chooses rows.",
        )
