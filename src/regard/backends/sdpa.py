"""The backend "torch": dot products, and Gaussian scores on a CPU, by scaled_dot_product_attention.

A Gaussian score is a dot product of tokens with one more dimension, up to a constant for each query, which softmax
removes: -|q - k|^2 / 2 = [q, 1] . [k, -|k|^2 / 2] - |q|^2 / 2.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.backends import higher_order, varlen
from regard.backends.base import Backend, Bias, Need, Plan, Problem, Refusal, Result
from regard.checks import (
    accumulation_dtype,
    can_broadcast,
    common_batch,
    has_empty_input,
    is_autocast_enabled,
    needs_grad,
)
from regard.masks.bound import Band, BoundMask, Dense
from regard.scores.distance import DistancePair, is_gaussian
from regard.scores.dot import DotPair
from regard.scores.kernels import SquaredExponential
from regard.torch_compat import (
    call_for_reuse,
    can_read_values,
    forward_gradient_level,
    in_functorch,
    is_plain_tensor,
    is_traced,
)

# Largest mask that is materialised, and largest number of weights that dropout materialises on a CPU. Above it, memory
# is no longer linear in tokens.
MAX_MASK_ENTRIES = 2**24
# Smallest number of pairs of tokens in one example for which one CPU call for each example is faster than one call for
# the padded batch, without and with a gradient. `python -m benchmarks dot`.
MIN_EXAMPLE_PAIRS = (2**17, 2**18)
# Largest term rate (|q|^2 + |k|^2) / width^2 of a Gaussian score that is computed as a dot product. Its error is a few
# roundings of this term, like that of torch.cdist; with a larger term, blocks compute differences.
MAX_GAUSSIAN_TERM = 128.0
# Up to this many pairs of tokens, a Gaussian score in training is a dot product with a bias for each key.
MAX_KEY_BIAS_PAIRS = 2**20
# With fewer keys than this and without a mask, torch's CPU kernel returns 0 instead of NaN for a NaN query.
MIN_KEYS = 16
# Masks for such short calls, by dtype, queries and keys. Both numbers are at most MIN_KEYS, so the masks are few.
_short_masks: dict[tuple[torch.dtype, int, int], Tensor] = {}


class Sdpa(Backend):
    """Runs dot products and Gaussian scores by `torch.nn.functional.scaled_dot_product_attention`."""

    name = "torch"

    def plan(self, problem: Problem, need: Need) -> Plan | Refusal:
        """Return a plan for dot products and Gaussian scores whose mask and bias the kernels of torch support."""
        pair, mask, value = problem.pair, problem.mask, problem.value
        if isinstance(pair, DistancePair) and is_gaussian(pair):
            return self._plan_gaussian(problem, pair, need)
        if not isinstance(pair, DotPair):
            return self.refuse("it computes dot products and Gaussian scores only")
        if need != "output":
            return self.refuse("it does not return log_mass")
        if pair.softcap is not None:
            return self.refuse("it has no softcap")
        causal = mask is not None and mask.is_causal
        if causal and pair.scale <= 0:
            return self.refuse("its causal kernels need a positive scale")
        if problem.bias is not None and (reason := _refuse_bias(problem)):
            return self.refuse(reason)
        if problem.dropout and value.is_cpu and problem.elements > MAX_MASK_ENTRIES:
            return self.refuse(f"its CPU kernel has no dropout: it would materialise {problem.elements} weights")
        if has_empty_input(pair.query, pair.key, value):
            return self.refuse("an input is empty")
        if not torch.compiler.is_compiling() and forward_gradient_level() >= 0:
            return self.refuse("its kernels have no forward-mode derivatives")
        if pair.query.ndim > 4 and not _can_fold(pair.query, pair.key, value):
            return self.refuse("a shared batch axis would be copied")
        if mask is None or (causal and problem.bias is None):
            return _PLAN_WITHOUT_PADDING
        return self._plan_masked(problem, mask)

    def _plan_gaussian(self, problem: Problem, pair: DistancePair, need: Need) -> Plan | Refusal:
        """Return a plan for a Gaussian score, or a refusal if its rounding as a dot product would be large.

        The norms of the tokens are read, which shows how large the rounding is.
        """
        dot_problem = problem._replace(pair=DotPair(pair.query, pair.key, 1.0))
        found = self.plan(dot_problem, need)
        if isinstance(found, Refusal):
            return found
        if not all(map(can_read_values, (pair.query, pair.key, pair.width))):
            return self.refuse("it reads the norms of tokens for a Gaussian score, on a CPU outside of tracing only")
        if pair.query.dtype not in (torch.float32, torch.float64) or is_autocast_enabled(problem.value.device):
            return self.refuse("a Gaussian score as a dot product needs float32 or float64")
        if not (term := _gaussian_term(problem, pair)) <= MAX_GAUSSIAN_TERM:
            return self.refuse(f"the largest term of the dot product, {term:.3g}, would be rounded too much")
        return found._replace(run=partial(_run_gaussian, found))

    def error_bound(self, problem: Problem) -> str:
        """Return the promised error of one score."""
        pair = problem.pair
        if not isinstance(pair, DistancePair):
            return super().error_bound(problem)
        dtype = str(pair.query.dtype).removeprefix("torch.")
        return f"a few roundings of {dtype} of the largest term of the dot product, {_gaussian_term(problem, pair):.3g}"

    def _plan_masked(self, problem: Problem, mask: BoundMask) -> Plan | Refusal:
        """Return a plan for a mask that the kernels of torch get as a tensor, or as the lengths of examples."""
        bias = problem.bias
        if bias is None and (problem.value.device.type == varlen.DEVICE or _has_long_examples(problem)):
            run_without_padding = varlen.choose_run(problem, _attend)
            if run_without_padding is not None:
                return Plan(self.name, run_without_padding, reads_padding=False)
        if _is_per_pair(mask, bias) and (entries := _mask_entries(problem, mask)) > MAX_MASK_ENTRIES:
            return self.refuse(f"the mask would be materialised with {entries} entries, more than {MAX_MASK_ENTRIES}")
        return _PLAN


def _gaussian_term(problem: Problem, pair: DistancePair) -> float:
    """Return the largest rate (|q|^2 + |k|^2) / width^2 of a pair of tokens, without padding."""
    assert isinstance(pair.kernel, SquaredExponential)
    with torch.no_grad():
        key, mask = pair.key, problem.mask
        if mask is not None and not problem.padding_is_zero:
            padding = mask.padding(problem.keys, key.device)
            key = key if padding is None else padding.zero(key)
        norms = [torch.linalg.vector_norm(tokens, dim=-1).amax().item() for tokens in (pair.query, key)]
        width = (pair.width if pair.width.numel() == 1 else pair.width.amin()).item()
    return pair.kernel.rate * (norms[0] ** 2 + norms[1] ** 2) / width**2 if width**2 > 0 else math.inf


def _run_gaussian(plan: Plan, problem: Problem) -> Result:
    """Return the output of a Gaussian problem by the plan for a dot product."""
    pair = problem.pair
    assert isinstance(pair, DistancePair)
    assert isinstance(pair.kernel, SquaredExponential)
    squared_norms = pair.key.square().sum(-1, keepdim=True)
    if problem.mask is None and pair.width.numel() == 1 and _can_use_key_bias(problem):
        # The norms of keys as a bias for each key save copies of the tokens.
        factor = pair.kernel.rate / pair.width.item() ** 2
        key_bias = squared_norms.mT * -factor
        dot_problem = problem._replace(pair=DotPair(pair.query, pair.key, 2 * factor), bias=None)
        if problem.bias is None:
            return Result(_attend(dot_problem, False, key_bias))
        assert isinstance(problem.bias, Tensor)  # the plan refuses a callable
        return _run(dot_problem._replace(bias=key_bias + problem.bias))
    factor = 2 * pair.kernel.rate / pair.width.square()
    query = torch.cat([pair.query * factor, factor.expand(*pair.query.shape[:-1], 1)], -1)
    key = torch.cat([pair.key, squared_norms * -0.5], -1)
    return plan.run(problem._replace(pair=DotPair(query.to(key.dtype), key, 1.0)))


def _can_use_key_bias(problem: Problem) -> bool:
    """Return whether the norms of keys may be a bias for each key.

    The gradient of a bias materialises the weights, so in training the problem must be small. The width of such a call
    is a number, so it cannot have a gradient.
    """
    if not needs_grad(*problem.operands()):
        return True
    pairs = math.prod(problem.batch) * problem.queries * problem.keys
    return pairs <= MAX_KEY_BIAS_PAIRS and not needs_grad(*problem.pair.parameters())


def _run(problem: Problem) -> Result:
    """Return the output of a problem whose padding is 0."""
    mask = problem.mask
    if problem.bias is None and (mask is None or mask.is_causal):
        return Result(_attend(problem, mask is not None))
    attn_mask, empty = _attn_mask(problem)
    output = _attend(problem, False, attn_mask)
    # torch returns NaN for a NaN query without keys. torch.where is one kernel, masked_fill would be two.
    return Result(output if empty is None else torch.where(empty, 0.0, output))


_PLAN = Plan(Sdpa.name, _run)
# For calls without a mask or with a causal mask only, which have no padding.
_PLAN_WITHOUT_PADDING = _PLAN._replace(reads_padding=False)


def _attn_mask(problem: Problem) -> tuple[Tensor | None, Tensor | None]:
    """Return mask and bias as one attn_mask of torch, and which rows have no key.

    Returns:
        attn_mask, boolean or added to the scores, or None if nothing is hidden; and the rows without keys, bool
        (*batch or 1, queries or 1, 1), or None if every row has a key.
    """
    mask, value, bias = problem.mask, problem.value, problem.bias
    if mask is not None and bias is None and not mask.varies_by_query:
        padding = mask.padding(value.shape[-2], value.device)
        if padding is None:
            return None, None
        attn_mask, empty = padding.bias(value.dtype), padding.empty_examples()
        if value.is_cpu or can_broadcast(padding.real.shape[:-2], value.shape[:-2]):
            # The values of an example without keys are all 0, so torch returns 0 or NaN. _run replaces the NaN.
            return attn_mask, empty
    else:
        attn_mask = None
        if mask is not None:
            attn_mask = mask.tile(slice(0, problem.queries), slice(0, problem.keys), value.device)
        if bias is not None:
            assert isinstance(bias, Tensor)
            bias = bias.to(value.dtype)
            attn_mask = bias if attn_mask is None else bias.masked_fill(~attn_mask, -math.inf)
        assert attn_mask is not None
        empty = ~(attn_mask if attn_mask.dtype == torch.bool else attn_mask > -math.inf).any(-1, keepdim=True)
    if empty is not None and not attn_mask.is_cpu:
        # Let rows without keys see every key, because the result of the fused GPU kernels for them depends on kernel
        # and version.
        attn_mask = attn_mask | empty if attn_mask.dtype == torch.bool else attn_mask.masked_fill(empty, 0.0)
    return attn_mask, empty


def _attend(problem: Problem, causal: bool, attn_mask: Tensor | None = None) -> Tensor:
    """Return the output for inputs with any number of batch axes.

    Args:
        problem: dot products.
        causal: whether query i attends to the keys 0..i only.
        attn_mask: which keys each query may attend to, or a bias that is added to the scores, as torch expects it.

    Returns:
        (*batch, queries, value_dim).
    """
    pair, value, dropout = problem.pair, problem.value, problem.dropout
    assert isinstance(pair, DotPair)
    query, key = pair.query, pair.key
    if problem.has_one_batch and query.ndim == 4:
        return _call_torch(query, key, value, attn_mask, dropout, causal, pair.scale)
    batch, rank = problem.batch, query.ndim
    is_grouped = rank > 4 and _is_grouped(query, key, value)
    if is_grouped:
        # Queries (*batch, kv_heads, group, tokens, dim) share the keys of their group: torch's enable_gqa.
        query, key, value = query.flatten(-4, -3), key.squeeze(-3), value.squeeze(-3)
    else:
        query, key, value = (
            x if x.shape[:-2] == batch else x.expand(*batch, *x.shape[-2:]) for x in (query, key, value)
        )
    if attn_mask is not None:
        if rank > 4:
            attn_mask = attn_mask.expand(*batch, *attn_mask.shape[-2:])
            attn_mask = attn_mask.flatten(-4, -3) if is_grouped else attn_mask
        attn_mask = _to_4d(attn_mask)
    query, key, value = _to_4d(query), _to_4d(key), _to_4d(value)
    output = _call_torch(query, key, value, attn_mask, dropout, causal, pair.scale, is_grouped)
    return output.reshape(*batch, *output.shape[-2:])


def _call_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float,
    enable_gqa: bool = False,
) -> Tensor:
    """Call scaled_dot_product_attention for (batch, heads, tokens, dim), with inputs that its kernels support."""
    value_dim = value.shape[-1]
    is_supported = value_dim == query.shape[-1] and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    if not query.is_cpu and not torch.compiler.is_compiling():
        query, key, value = _align(query), _align(key), _align(value)
    if not is_supported:
        query, key, value = _pad_and_copy(query, key, value)
    if attn_mask is None and key.is_cpu and _is_short(key):
        attn_mask, causal = _short_mask(query, key, causal), False
    output = functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout, causal, scale=scale, enable_gqa=enable_gqa
    )
    if output.requires_grad and not (dropout or torch.compiler.is_compiling() or in_functorch()):
        _add_second_derivatives(output, query, key, value, attn_mask, causal, scale)
    return output if is_supported else output[..., :value_dim]


def _add_second_derivatives(
    output: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, causal: bool, scale: float
) -> None:
    """Let the gradients of a fused kernel have derivatives, which torch does not implement.

    If a backward pass builds a graph, a hook replaces the gradients by those of the plain equations. An ordinary
    backward pass is not changed.

    Args:
        output: result of scaled_dot_product_attention.
        query: (batch, heads, queries, dim).
        key: (batch, kv_heads, keys, dim).
        value: (batch, kv_heads, keys, value_dim).
        attn_mask: as it was passed to torch.
        causal: whether query i attends to the keys 0..i only.
        scale: factor of the dot products.
    """
    node = output.grad_fn
    if node is None or not node.name().startswith("ScaledDotProduct"):
        return  # the implementation by plain operations has all derivatives
    is_boolean = attn_mask is not None and attn_mask.dtype == torch.bool

    def make_problem(tensors: Sequence[Tensor]) -> Problem:
        query, key, value, *rest = tensors
        group = query.shape[-3] // key.shape[-3]
        if group > 1:
            key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
        mask = Dense(rest[0]) if is_boolean else Band(None, 0) if causal else None
        bias = rest[0] if rest and not is_boolean else None
        return Problem(DotPair(query, key, scale), value, mask, bias)

    def replace_gradients(gradients: Sequence[Tensor | None], d_outputs: Sequence[Tensor]) -> Any:
        if not torch.is_grad_enabled():
            return None
        d_output = d_outputs[0]
        d_log_mass = d_output.new_zeros(d_output.shape[:-1], dtype=accumulation_dtype(value.dtype))
        inputs = [query, key, value, d_output, d_log_mass]
        constants = [] if attn_mask is None else [attn_mask]
        pullback = higher_order.Pullback(higher_order.Equations(make_problem), 3)
        found = higher_order.differentiable(pullback, inputs, constants)
        return tuple(None if old is None else new for old, new in zip(gradients, (*found, *gradients[3:]), strict=True))

    node.register_hook(replace_gradients)


def _is_short(key: Tensor) -> bool:
    """Return whether a call has fewer keys than MIN_KEYS; False in a compiled program, where sizes must not decide."""
    return not key.is_nested and not torch.compiler.is_compiling() and key.shape[-2] < MIN_KEYS


def _short_mask(query: Tensor, key: Tensor, causal: bool) -> Tensor:
    """Return the causal mask of a call as a tensor, or a single 0 for a call without a mask; see MIN_KEYS."""
    queries, keys = (query.shape[-2], key.shape[-2]) if causal else (1, 1)
    cache_key, can_cache = (key.dtype, queries, keys), type(key) is Tensor and queries <= MIN_KEYS
    mask = _short_masks.get(cache_key) if can_cache else None
    if mask is None:
        options = {"dtype": key.dtype, "device": key.device}
        hidden = -math.inf if causal else 0.0
        mask = call_for_reuse(lambda: torch.full((1, 1, queries, keys), hidden, **options).triu_(1))
        if can_cache and not is_traced():  # a tensor made under a mode of torch belongs to that mode
            _short_masks[cache_key] = mask
    return mask


def _pad_and_copy(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs for torch's memory-efficient kernels: a contiguous last axis, and on a CPU equal last sizes."""
    if in_functorch():  # torch.func uses the kernel that materialises the weights, which supports all inputs
        return query, key, value
    missing = query.shape[-1] - value.shape[-1] if value.device.type == "cpu" else 0
    if missing > 0:  # zeros do not change the products
        value = functional.pad(value, (0, missing))
    elif missing < 0:
        query, key = functional.pad(query, (0, -missing)), functional.pad(key, (0, -missing))
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    return query, key, value


def _align(tensor: Tensor) -> Tensor:
    """Return the tensor, or a contiguous copy if its rows do not start where the GPU kernels can load them.

    Without a copy, torch 2.11 fails with "cutlassF: no kernel found to launch!". Rows whose size is not a multiple of
    ALIGNMENT stay where they are: torch copies them itself, or uses a kernel that can load them.
    """
    if not is_plain_tensor(tensor):
        return tensor
    aligned_entries = varlen.ALIGNMENT // tensor.element_size()
    offsets = tensor.storage_offset()
    if tensor.shape[-1] % aligned_entries == 0:
        batch_stride, head_stride, row_stride, _ = tensor.stride()
        # A power of two divides a union of bits if it divides each number.
        offsets |= batch_stride | head_stride | row_stride
    if offsets % aligned_entries == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)  # also resets the strides of axes of size 1


def _to_4d(tensor: Tensor) -> Tensor:
    """Return the tensor with exactly two batch axes."""
    if tensor.ndim > 4:
        return tensor.flatten(0, -4)
    while tensor.ndim < 4:
        tensor = tensor.unsqueeze(0)
    return tensor


def _is_grouped(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether keys and values are shared over the last batch axis, and all other axes are equal."""
    shared = key.shape[-3] == value.shape[-3] == 1 < query.shape[-3]
    # A branch, because symbolic sizes give a symbolic comparison, and torch needs True or False.
    if shared and query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:  # noqa: SIM103
        return True
    return False


def _can_fold(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the batch axes can become two without copying a shared axis."""
    return query.shape[:-2] == key.shape[:-2] == value.shape[:-2] or _is_grouped(query, key, value)


def _refuse_bias(problem: Problem) -> str | None:
    """Return why torch cannot add the bias of a problem, or None."""
    bias = problem.bias
    if not isinstance(bias, Tensor):
        return "it does not support a callable bias"
    if bias.requires_grad and torch.is_grad_enabled():
        return "the gradient of the bias would materialise the weights"
    if torch.promote_types(bias.dtype, problem.value.dtype) != problem.value.dtype:
        return f"it would round the bias to {problem.value.dtype} before adding it"
    return None


def _has_long_examples(problem: Problem) -> bool:
    """Return whether one CPU call for each example is faster; False in a traced call, where sizes must not decide."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    pairs = problem.pair.query.shape[1:-1].numel() * problem.value.shape[-2]
    min_forward, min_training = MIN_EXAMPLE_PAIRS
    return pairs >= (min_training if needs_grad(problem.pair.query, problem.pair.key, problem.value) else min_forward)


def _is_per_pair(mask: BoundMask, bias: Bias | None) -> bool:
    """Return whether mask and bias are materialised over queries and keys."""
    if bias is None:
        return mask.varies_by_query
    return mask.varies_by_query or (isinstance(bias, Tensor) and bias.shape[-2] != 1)


def _mask_entries(problem: Problem, mask: BoundMask) -> int:
    """Return the number of entries of the mask and the bias of a problem, materialised over queries and keys."""
    tensors = mask.tensors() + ([problem.bias] if isinstance(problem.bias, Tensor) else [])
    batch = common_batch(*tensors, argument="mask") if tensors else ()
    return math.prod(batch) * problem.queries * problem.keys
