"""One call of attention after preparation: the record that every backend is given."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.keeping import find
from regard.masks.placed import Dense, Lengths, Placed, map_tensors
from regard.scores.forms import AdditiveForm, CallableForm, DistanceForm, DotForm, Form
from regard.shapes import common_batch, have_one_shape
from regard.watched import is_readable, is_watched

Bias = Tensor | Callable[[Tensor, Tensor], Tensor]
Index = tuple[int | slice, ...]
# So many numbers are copied in less time than it takes to ask for their extremes.
FEW_NUMBERS = 2**14


class Problem(NamedTuple):
    """What to pool: sum_j softmax_j(form + bias, where the mask allows) value_j (eq. 1 and 3).

    value: (*batch, keys, value_dim). bias: a tensor of full rank, (*batch or 1, queries or 1, keys or 1), or a
    callable of positions (queries,) and (keys,) that returns a tile. first_query: the position of query 0.
    is_blanked: padding holds 0, or nothing that could matter.
    """

    form: Form
    value: Tensor
    mask: Placed | None = None
    bias: Bias | None = None
    dropout: float = 0.0
    tolerance: float | None = None
    first_query: int = 0
    is_blanked: bool = False

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.form.query.shape[-2]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.value.shape[-2]

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch shape that all inputs broadcast to."""
        return batch_of(self.form, self.value)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors of the form beside query and key."""
        return parameters_of(self.form)

    @property
    def work(self) -> int:
        """How many elements the textbook form holds at once: pairs, times the hidden width if additive."""
        pairs = math.prod(self.batch) * self.queries * self.keys
        match self.form:
            case AdditiveForm(query=query):
                return pairs * query.shape[-1]
            case DistanceForm(query=query) | CallableForm(query=query):
                return pairs * query.shape[-1]
        return pairs

    @property
    def is_code(self) -> bool:
        """Whether a user's function computes its scores or its bias, over whatever batch axes it has in mind."""
        return isinstance(self.form, CallableForm) or callable(self.bias)

    def at(self, index: Index) -> "Problem":
        """The problem of some of the batch: numbers and slices for the leading batch axes; not where it is code."""
        batch = self.batch

        def pick(tensor: Tensor) -> Tensor:
            # An axis that is shared stays shared: a number takes its only entry, a slice leaves it alone.
            shared = [tensor.shape[axis] == 1 < size for axis, size in enumerate(batch)]
            own = [(0 if isinstance(i, int) else slice(None)) if shared[axis] else i for axis, i in enumerate(index)]
            return tensor[tuple(own)]

        tensors = {name: pick(part) for name, part in self.form._asdict().items() if isinstance(part, Tensor)}
        form = self.form._replace(**tensors)  # pyrefly: ignore
        mask = None if self.mask is None else map_tensors(self.mask, pick)
        bias = pick(self.bias) if isinstance(self.bias, Tensor) else None
        return self._replace(form=form, value=pick(self.value), mask=mask, bias=bias)

    def without_padding(self) -> "Problem":
        """The same problem with 0 for keys (of a closed form) and values that no query may see.

        Padding may hold any finite garbage: its score could overflow, and in a gradient 0 * inf is NaN.
        """
        mask, device = self.mask, self.value.device
        if mask is None or self.is_blanked:
            return self
        if mask.varies_by_query:
            padding = mask.unseen_keys(self.keys, device)
            if padding is None:
                return self._replace(is_blanked=True)
            real = ~_of_rank(padding, self.value.ndim)
        else:
            mask = evaluated(mask, self.value)
            real = mask.allowed.mT
        form, value, is_differentiated = self.form, self.value, self._may_be_differentiated()
        if isinstance(form, DotForm) and _cannot_overflow(form, value, real, is_differentiated):
            return self._replace(mask=mask, is_blanked=True)
        if not isinstance(form, CallableForm):
            # A user's function might divide by the norm of a key, or take its logarithm: it sees keys as they came.
            form = form._replace(key=blank(form.key, real))
        # Without a gradient 0 * garbage is 0 by itself; a GPU's kernels may give a row without keys other weights.
        if is_differentiated or device.type != "cpu":
            value = blank(value, real)
        return self._replace(form=form, value=value, mask=mask, is_blanked=True)

    def _may_be_differentiated(self) -> bool:
        """Not where no tensor wants a gradient; code may hold one that does, and a transform does not say."""
        form, bias = self.form, self.bias
        if not torch.is_grad_enabled():
            return False
        if may_be_differentiated(form.query, form.key, self.value):
            return True
        if bias is None and isinstance(form, DotForm):  # a short call would notice the slower questions
            return False
        return self.is_code or any(isinstance(x, Tensor) and x.requires_grad for x in (*self.parameters, bias))


def may_be_differentiated(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether a gradient of these may be asked for; a transform does not say."""
    if not torch.is_grad_enabled():
        return False
    wanted = query.requires_grad or key.requires_grad or value.requires_grad
    return wanted or torch._C._are_functorch_transforms_active()


def batch_of(form: Form, value: Tensor) -> tuple[int, ...]:
    """The batch shape that the tensors of a form and its values broadcast to."""
    if isinstance(form, DotForm) and have_one_shape(form.query, form.key, value):
        return tuple(value.shape[:-2])
    return common_batch(form.query, form.key, value, *parameters_of(form), argument="score")


def parameters_of(form: Form) -> tuple[Tensor, ...]:
    """The tensors of a form beside query and key."""
    if isinstance(form, DistanceForm):
        return (form.width,)
    return (form.weight,) if isinstance(form, AdditiveForm) else ()


def _cannot_overflow(form: DotForm, value: Tensor, real: Tensor, is_differentiated: bool) -> bool:
    """Whether every dot product with padding is far from overflow, and of values with gradients too: no blanks then.

    Reading is cheaper than writing a copy of keys and values, unless they are few. real: (*batch, keys, 1), what is no
    padding.
    """
    # A compiler would note the sizes, and refuse others.
    if torch.compiler.is_compiling() or max(form.key.numel(), value.numel()) < FEW_NUMBERS or not is_readable(value):
        return False
    if any(tensor.numel() == 0 for tensor in (form.query, form.key, value)):
        return False
    if bool(real.all()):
        return True
    read = (form.query, form.key, value) if is_differentiated else (form.query, form.key)
    limit = math.sqrt(torch.finfo(value.dtype).max / max(form.query.shape[-1], 1) / 16)
    return abs(form.scale) <= 1 and all(_is_within(tensor.detach(), limit) for tensor in read)


def _is_within(tensor: Tensor, limit: float) -> bool:
    """Whether all numbers are; a comparison with NaN is False."""
    # One look at both ends copies what does not lie side by side: there two are faster.
    low, high = tensor.aminmax() if tensor.is_contiguous() else (tensor.amin(), tensor.amax())
    return -limit < float(low) and float(high) < limit


def evaluated(mask: Placed, value: Tensor) -> Dense:
    """A mask that is the same for every query, as what it says of each key: (*batch or 1, 1, keys)."""
    if isinstance(mask, Dense) and mask.allowed.ndim == value.ndim:
        return mask
    keys = value.shape[-2]

    def dense() -> Dense:
        return Dense(_of_rank(mask.tile(slice(0, 1), slice(0, keys), value.device), value.ndim))

    # Lengths never change: what a call has made of them is there for the next one.
    return dense() if type(mask) is not Lengths or is_watched() else find(mask.kept, keys, value.device, dense)


def _of_rank(tensor: Tensor, rank: int) -> Tensor:
    """With axes of size 1 in front: a mask without batch axes of its own, as a window without ends, is one for all."""
    return tensor if tensor.ndim == rank else tensor.reshape((1,) * (rank - tensor.ndim) + tensor.shape)


def blank(tokens: Tensor, real: Tensor) -> Tensor:
    """tokens: (*batch, keys, dim), real: bool (*batch, keys, 1); tokens shared along an axis stay shared.

    Not a product with 0: what a projection has made of finite garbage may be infinite.
    """
    for axis in range(tokens.ndim - 2):
        if tokens.shape[axis] == 1 < real.shape[axis]:
            real = real.amax(axis, keepdim=True)
    return torch.where(real, tokens, 0.0)
