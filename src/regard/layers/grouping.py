"""Grouped heads: several query heads share one head of keys and values, as an axis of size 1, never repeated."""

from torch import Tensor

from regard.backends.problem import Bias, Problem, parameters_of
from regard.errors import RegardError
from regard.masks import Mask
from regard.masks.placed import Placed, map_tensors
from regard.pooling.prepare import Settings, to_problem
from regard.scores.forms import AdditiveForm, DistanceForm, Form
from regard.shapes import broadcast_batch, describe


def heads_problem(form: Form, value: Tensor, sink: Tensor | None, settings: Settings) -> tuple[Problem, Tensor | None]:
    """The problem of (*batch, heads, queries, dim) against keys and values with as many heads, or fewer.

    form: query (*batch, heads, queries, dim), key (*batch, kv_heads, keys, dim), parameters per head or shared.
    value: (*batch, kv_heads, keys, value_dim). sink: (heads,). Mask and bias are in terms of (*batch, heads).

    With fewer heads of keys, the batch axes of the problem are (*batch, kv_heads, group), and of its result too.
    """
    heads, kv_heads = form.query.shape[-3], value.shape[-3]
    mask = settings.mask
    if mask is not None and not isinstance(mask, Placed):
        mask = _placed(Mask.expect(mask), form, value, settings.first_query)
    if heads == kv_heads:
        return to_problem(form, value, settings._replace(mask=mask)), sink
    groups = Groups(heads, kv_heads)
    if sink is not None and sink.shape != (heads,):
        raise RegardError(
            "sink",
            got=describe(sink),
            needed=f"one logit for each of the {heads} heads of queries",
            repair="Pass a tensor of shape (heads,).",
        )
    mask = None if mask is None else map_tensors(mask, groups.split)
    rank = form.query.ndim
    bias, layer_bias = groups.bias(settings.bias, rank), groups.bias(settings.layer_bias, rank)
    split = settings._replace(mask=mask, bias=bias, layer_bias=layer_bias)
    problem = to_problem(groups.form(form), value.unsqueeze(-3), split)
    return problem, None if sink is None else sink.unflatten(-1, (kv_heads, -1))


def _placed(mask: Mask, form: Form, value: Tensor, first_query: int | None) -> Placed:
    """The mask on (*batch, heads) of the queries, however many heads the keys have."""
    batch = form.query.shape[:-3]
    for tensor in (form.key, value, *parameters_of(form)):
        batch = broadcast_batch("key", batch, tensor.shape[:-3])
    return mask.place(
        batch=(*batch, form.query.shape[-3]),
        queries=form.query.shape[-2],
        keys=value.shape[-2],
        device=value.device,
        first_query=first_query,
        has_heads=True,
    )


class Groups:
    """From tensors with an axis `heads` to tensors with the axes `kv_heads, group`."""

    def __init__(self, heads: int, kv_heads: int) -> None:
        """heads: a multiple of kv_heads."""
        self.heads = heads
        self.kv_heads = kv_heads

    def split(self, tensor: Tensor) -> Tensor:
        """Axis -3: heads become (kv_heads, group); what has fewer (keys, or 1 for all) is shared in a group."""
        if tensor.shape[-3] == self.heads:
            return tensor.unflatten(-3, (self.kv_heads, self.heads // self.kv_heads))
        return tensor.unsqueeze(-3)

    def form(self, form: Form) -> Form:
        """Query, key and the parameters of a closed form."""
        split = form._replace(query=self.split(form.query), key=self.split(form.key))
        match split:
            case DistanceForm(width=width):
                return split._replace(width=self.split(width))
            case AdditiveForm(weight=weight):
                return split._replace(weight=self.split(weight))
        return split

    def bias(self, bias: Bias | None, rank: int) -> Bias | None:
        """A tensor or a callable in terms of (*batch, heads, queries, keys)."""
        if isinstance(bias, Tensor):
            if bias.ndim <= 2:
                return bias
            self._check_head_axis("bias", bias)
            return self.split(bias.reshape((1,) * (rank - bias.ndim) + bias.shape))
        if bias is None or not callable(bias):
            return bias

        def tile(query_positions: Tensor, key_positions: Tensor) -> Tensor:
            whole = bias(query_positions, key_positions)
            if not isinstance(whole, Tensor) or whole.ndim <= 2:
                return whole
            self._check_head_axis("bias", whole)
            return self.split(whole)

        return tile

    def _check_head_axis(self, argument: str, tensor: Tensor) -> None:
        if tensor.shape[-3] not in (1, self.heads):
            raise RegardError(
                argument,
                got=describe(tensor),
                needed=f"{self.heads} heads, or 1, on the axis before queries and keys",
                repair=f"Give one entry for each of the {self.heads} heads of queries, not for the heads of keys.",
            )
