"""The torch backend: scaled_dot_product_attention for dot products, called and not rewritten."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from regard.backends import one_by_one
from regard.backends.pages import hold_pages
from regard.backends.problem import Bias, Problem
from regard.backends.ragged import Line, line_of
from regard.masks.placed import Placed
from regard.scores.forms import DotForm
from regard.shapes import common_batch, have_one_shape
from regard.watched import is_readable

NAME = "torch"

# What has an entry for each pair: a mask over queries and keys, which is handed over whole, and on a CPU weights that
# are dropped. Up to so many entries that is no burden; beyond it the promise of memory linear in tokens would break,
# and tiles are the better way.
MOST_ENTRIES = 2**24
# With fewer keys than a vector has numbers, torch's kernel for a CPU answers a NaN query by 0, unless there is a mask.
VECTOR = 16


def refuse(problem: Problem, log_mass: bool) -> str | None:
    """Why scaled_dot_product_attention cannot do this, or None."""
    form, mask, bias = problem.form, problem.mask, problem.bias
    if not isinstance(form, DotForm):
        return "it knows dot products only"
    if log_mass:
        return "it does not return log_mass"
    if form.softcap is not None:
        return "it has no softcap"
    if form.scale <= 0 and mask is not None and mask.is_plain_causal:
        return "its causal kernels want a positive scale"
    if bias is not None and (reason := _refuse_bias(problem)):
        return reason
    if mask is not None and _is_made_for_pairs(mask, bias) and _line(problem) is None:
        entries = _mask_entries(problem, mask)
        if entries > MOST_ENTRIES and one_by_one.runs_of(problem) is None:
            return f"the mask would be materialised with {entries} entries, more than {MOST_ENTRIES}"
    query, key, value = form.query, form.key, problem.value
    if problem.dropout and value.device.type == "cpu" and problem.work > MOST_ENTRIES:
        return f"its kernel for a CPU has no dropout: {problem.work} weights would be held at once"
    if 0 in query.shape or 0 in key.shape or 0 in value.shape:
        return "an input is empty"
    if query.ndim > 4 and not _foldable(query, key, value):
        return "a shared batch axis would be copied"
    return None


def run(problem: Problem) -> tuple[Tensor, None]:
    """Output (*batch, queries, value_dim)."""
    line = _line(problem)
    if line is not None:
        return line.pool(), None
    runs = one_by_one.runs_of(problem)
    if runs is not None:
        return _pool_runs(problem, runs), None
    problem = problem.without_padding()
    form, mask = problem.form, problem.mask
    assert isinstance(form, DotForm)
    causal = mask is not None and mask.is_plain_causal and problem.bias is None
    allowed = None if causal else _allowed(problem)
    if allowed is None:
        return _call(form, problem.value, None, problem.dropout, causal), None
    empty = ~(allowed if allowed.dtype == torch.bool else allowed > -math.inf).any(-1, keepdim=True)
    if allowed.device.type != "cpu" and not _blank_where_hidden(problem, allowed):
        # What a GPU's fused kernels do with a row without keys depends on kernel and version.
        allowed = allowed | empty if allowed.dtype == torch.bool else allowed.masked_fill(empty, 0.0)
    output = _call(form, problem.value, allowed, problem.dropout, causal)
    return output.masked_fill(empty, 0.0), None


def _pool_runs(problem: Problem, runs: list[one_by_one.Run]) -> Tensor:
    form = problem.form
    assert isinstance(form, DotForm)
    outputs = [
        _call(form._replace(query=query, key=key), value, None, problem.dropout, causal)
        for query, key, value, causal in runs
    ]
    return one_by_one.joined(outputs)


def _line(problem: Problem) -> Line | None:
    """The problem as torch's kernels for sequences of different lengths take it, which read no padding."""
    form, mask = problem.form, problem.mask
    if mask is None or problem.bias is not None or not isinstance(form, DotForm) or form.scale <= 0:
        return None
    if problem.dropout >= 1:  # nothing is left to divide by
        return None
    return line_of(form.query, form.key, problem.value, mask, form.scale, problem.dropout)


def _allowed(problem: Problem) -> Tensor | None:
    """Mask and bias as one attn_mask: boolean without a bias, floating point with one."""
    allowed = None
    if problem.mask is not None:
        allowed = problem.mask.tile(slice(0, problem.queries), slice(0, problem.keys), problem.value.device)
    if problem.bias is None:
        return allowed
    assert isinstance(problem.bias, Tensor)
    bias = problem.bias.to(problem.value.dtype)
    return bias if allowed is None else bias.masked_fill(~allowed, -math.inf)


def _blank_where_hidden(problem: Problem, allowed: Tensor) -> bool:
    """Whether padding alone decides: its values are blank, so that any weights on them give 0.

    Not where values are shared along an axis on which the padding differs: there they were left as they are.
    """
    if problem.bias is not None or problem.mask is None or problem.mask.varies_by_query:
        return False
    axes = zip(allowed.shape[:-2], problem.value.shape[:-2], strict=True)
    return all(mask == 1 or mask == value for mask, value in axes)


def _call(form: DotForm, value: Tensor, allowed: Tensor | None, dropout: float, causal: bool) -> Tensor:
    """Bring the inputs to (batch, heads, tokens, dim) and to what the kernels want, call, restore the batch axes."""
    query, key, value_dim = form.query, form.key, value.shape[-1]
    rank, batch, grouped = query.ndim, query.shape[:-2], False
    if not have_one_shape(query, key, value) and (batch != key.shape[:-2] or batch != value.shape[:-2]):
        batch = common_batch(query, key, value)
        grouped = rank > 4 and _is_grouped(query, key, value)
        if grouped:
            # (*batch, kv_heads, group, tokens, dim) against a shared axis: the call's own grouped-query form.
            query, key, value = query.flatten(-4, -3), key.squeeze(-3), value.squeeze(-3)
        else:
            query, key, value = (x.expand(*batch, *x.shape[-2:]) for x in (query, key, value))
    if allowed is not None and rank > 4:
        allowed = allowed.expand(*batch, *allowed.shape[-2:])
        allowed = allowed.flatten(-4, -3) if grouped else allowed
    if rank != 4:
        query, key, value = _four(query), _four(key), _four(value)
        allowed = None if allowed is None else _four(allowed)
    if not torch._C._are_functorch_transforms_active():  # which have a rule for the other kernel alone
        query, key, value = (_ready(x) for x in _of_one_width(query, key, value))
    if is_readable(value):
        hold_pages()
        if allowed is None:
            allowed = everything(query, key, causal=causal)
            causal = causal and allowed is None
    output = functional.scaled_dot_product_attention(
        query, key, value, allowed, dropout, causal, scale=form.scale, enable_gqa=grouped
    )
    output = output if output.shape[-1] == value_dim else output[..., :value_dim]
    return output if rank == 4 else output.reshape(*batch, *output.shape[-2:])


def everything(query: Tensor, key: Tensor, *, causal: bool) -> Tensor | None:
    """A mask that hides no more than is hidden already, for a call that would lose NaN without one.

    It is made for each call: under a mode of torch it is a tensor of that mode, and must not serve a later call.
    """
    queries, keys = query.shape[-2], key.shape[-2]
    if keys >= VECTOR or key.device.type != "cpu":
        return None
    if not causal:
        return torch.zeros((1, 1, 1, 1), dtype=key.dtype, device=key.device)
    return torch.full((1, 1, queries, keys), -math.inf, dtype=key.dtype, device=key.device).triu_(1)


def _of_one_width(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """On a CPU the kernel without a matrix of weights wants it so: zeros add nothing."""
    missing = query.shape[-1] - value.shape[-1]
    if missing == 0 or value.device.type != "cpu":
        return query, key, value
    if missing > 0:
        return query, key, functional.pad(value, (0, missing))
    return functional.pad(query, (0, -missing)), functional.pad(key, (0, -missing)), value


def _ready(tokens: Tensor) -> Tensor:
    """The numbers of a token side by side, without which no kernel would do but one that holds all weights."""
    return tokens if tokens.stride(-1) == 1 else tokens.contiguous()


def _four(tensor: Tensor) -> Tensor:
    """Any number of leading axes as exactly two."""
    if tensor.ndim > 4:
        return tensor.flatten(0, -4)
    while tensor.ndim < 4:
        tensor = tensor.unsqueeze(0)
    return tensor


def _is_grouped(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Keys and values shared over the last batch axis, all other axes equal."""
    shared = key.shape[-3] == value.shape[-3] == 1 < query.shape[-3]
    # A branch: while sizes are symbols of a compiler the comparison is one too, and the call wants True or False.
    if shared and query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:  # noqa: SIM103
        return True
    return False


def _foldable(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return query.shape[:-2] == key.shape[:-2] == value.shape[:-2] or _is_grouped(query, key, value)


def _refuse_bias(problem: Problem) -> str | None:
    bias = problem.bias
    if not isinstance(bias, Tensor):
        return "it takes no callable bias"
    if bias.requires_grad and torch.is_grad_enabled():
        return "the gradient of the bias would materialise the weights"
    if torch.promote_types(bias.dtype, problem.value.dtype) != problem.value.dtype:
        return f"it would round the bias to {problem.value.dtype} before adding it"
    return None


def _is_made_for_pairs(mask: Placed, bias: Bias | None) -> bool:
    """Whether mask and bias become one tensor over queries and keys; a bias alone is there already."""
    if bias is None:
        return mask.varies_by_query and not mask.is_plain_causal
    return mask.varies_by_query or (isinstance(bias, Tensor) and bias.shape[-2] != 1)


def _mask_entries(problem: Problem, mask: Placed) -> int:
    shapes = [tensor.shape[:-2] for tensor in mask.tensors()]
    if isinstance(problem.bias, Tensor):
        shapes.append(problem.bias.shape[:-2])
    return math.prod(torch.broadcast_shapes(*shapes)) * problem.queries * problem.keys
