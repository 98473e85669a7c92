"""Attention with any score in models of Hugging Face transformers."""

import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.attended import run_with_weights
from regard.attention.prepare import Options, cast_for_autocast
from regard.backends.dispatch import run
from regard.checks import FLOATS, can_broadcast, check_inputs, check_int, check_tensor, describe
from regard.errors import RegardError
from regard.layers.heads import multihead_problem, resolve_score, scores_shape
from regard.masks import Mask
from regard.scores.base import PairScore, check_equal_dims
from regard.scores.dot import DotPair, check_finite, check_softcap
from regard.scores.names import ScoreLike, score_by_name
from regard.torch_compat import can_read_values

# For a name that contains one of these words, transformers looks for a kernel or checks the model.
RESERVED_WORDS = ("flash", "flex_attention", "sdpa")
_PACKED_REPAIR = "Pass a 4-D attention_mask that separates the documents, or pad the documents, and leave this out."
# Arguments of models that would change the result and are not supported, and how to fix the call.
UNSUPPORTED_ARGUMENTS = {
    "head_mask": "Use a MultiHeadAttention and its switch_off, or run the model with eager attention.",
    **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens_q", "cu_seqlens_k", "seq_idx"), _PACKED_REPAIR),
}
# Arguments of models that are accepted and not read. The mask has to contain the effect of positions; the others do not
# change attention.
IGNORED_ARGUMENTS = frozenset(
    ("position_ids", "cache_position", "token_type_ids", "num_items_in_batch", "max_length_q", "max_length_k")
)


def register_with_transformers(name: str = "regard", score: ScoreLike = "scaled_dot") -> None:
    """Register attention with any score as an attention implementation of Hugging Face transformers.

    Registers an attention function and its mask function. Load a model with `attn_implementation=name`, or call
    `model.set_attn_implementation(name)`. A second call with the same name replaces the first.

    Args:
        name: name of the implementation: letters, digits, hyphens and underscores. It must not be the name of one of
            transformers' own implementations or contain "flash", "flex_attention" or "sdpa", which transformers treats
            as its own.
        score: a name, a score or a callable. "scaled_dot" is the model's own dot product, with its scaling and its
            softcap; any other score replaces all three.

    Raises:
        RegardError: if the name is not allowed, if the score is unknown, or if transformers is missing or too old.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise RegardError(
            "name",
            got=f"{name!r:.80}",
            needed="a name of letters, digits, hyphens and underscores",
            repair='Use for example "regard".',
        )
    resolve_score(score)  # raises the error for an invalid score now and not in the first call of a model
    interface, mask_interface, eager_mask = _import_transformers()
    reserved = [word for word in RESERVED_WORDS if word in name]
    if reserved or _is_builtin_name(interface, name):
        raise RegardError(
            "name",
            got=repr(name),
            needed=f'a name without "{reserved[0]}"' if reserved else "a name that transformers does not use itself",
            repair='Use for example "regard".',
        )
    interface.register(name, _attention_function(score))
    # eager_mask always returns a full mask, so that models with attention code of their own can add it to their scores.
    mask_interface.register(name, eager_mask)


def attention_interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    *,
    score: ScoreLike | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention with the signature of a transformers attention function.

    Call `regard.register_with_transformers` instead of registering this function yourself. If you register it, also
    register a mask function for the same name in transformers' `AttentionMaskInterface`: without one, transformers
    drops every mask, padding included, and this function raises an error. transformers' `sdpa_mask` works for models
    with a dynamic cache that accept boolean masks. With a static cache, a prompt without padding is refused. Models
    that do not use `AttentionInterface` compute wrong results with `sdpa_mask`.

    Args:
        module: the attention module of the model.
        query: (batch, heads, queries, dim).
        key: (batch, kv_heads, keys, dim); kv_heads divides heads.
        value: (batch, kv_heads, keys, value_dim).
        attention_mask: None, 4-D (batch, heads, queries, keys), where an axis of size 1 is shared, or 2-D (batch,
            keys). In a 4-D boolean mask True means may attend. A 4-D floating-point mask is added to the scores, and
            the lowest number of its dtype means must not attend. A 2-D mask is True or 1 at real tokens, and False or
            0 at padding. Entries beyond the last key are ignored. A 2-D floating-point mask could be meant to be added,
            so it is refused unless it holds only zeros and ones, with at least one 1. On a GPU and under torch.compile
            it is always refused, because its values are not read.
        dropout: probability with which a weight is dropped, whenever it is above 0.
        scaling: factor of the dot products; 1 / sqrt(dim) by default.
        is_causal: whether later keys are hidden from each query, where the last query has the position of the last key.
            None for `module.is_causal`, or True if the module does not have it. Ignored if there is a 4-D mask.
        score: a name, a score or a callable used instead of the dot product; `scaling` and `softcap` are then ignored.
        softcap: keeps the scores inside (-softcap, softcap), as softcap * tanh(score / softcap).
        sliding_window: each query may attend to keys at a distance of less than this number. Ignored if there is a 4-D
            mask.
        s_aux: logits of the attention sink, (heads,), whose share of the weights goes to no key. It replaces a sink of
            `score`.
        position_bias: added to the scores, floating point, broadcastable to (batch, heads, queries, keys).
        **kwargs: other arguments of the model. With `output_attentions=True` the weights are returned. `head_mask`, the
            `cu_seq_lens_q` and `cu_seq_lens_k` of packed sequences, and every tensor with an unknown name are refused.
            `position_ids` and `cache_position` are accepted and not read, so packed sequences attend to each other
            unless a 4-D mask separates them.

    Returns:
        The output (batch, queries, heads, value_dim), and the weights (batch, heads, queries, keys) or None.

    Raises:
        RegardError: if an argument is invalid or not supported; if there is no mask and transformers has no mask
            function for the model's attention, or one that leaves out a mask that is needed here.

    >>> import torch, regard
    >>> query, key = torch.randn(2, 4, 5, 8), torch.randn(2, 1, 5, 8)
    >>> output, _ = regard.attention_interface(torch.nn.Module(), query, key, key, None, is_causal=True)
    >>> output.shape
    torch.Size([2, 5, 4, 8])
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, tensor)
    check_inputs(query[:, :1], key[:, :1], value[:, :1])  # the numbers of heads may differ
    _check_heads(query, key, value)
    for name, given in (("attention_mask", attention_mask), ("s_aux", s_aux), ("position_bias", position_bias)):
        _check_optional_tensor(name, given)
    _check_kwargs(kwargs)
    if attention_mask is None:
        _check_mask_function(module, query.shape[-2], key.shape[-2], is_causal)
    value = cast_for_autocast(value)
    pair, sink = _pair_and_sink(query, key, score, scaling, softcap)
    shape = scores_shape(pair, value)
    if attention_mask is not None:
        _check_mask(attention_mask, shape, value.device)
    mask, bias = _mask_and_bias(attention_mask, query.shape[-2], key.shape[-2], is_causal, sliding_window)
    if position_bias is not None:
        _check_position_bias(position_bias, shape, value.device)
        bias = position_bias if bias is None else bias + position_bias
    if s_aux is not None:
        _check_sink(s_aux, query)
        sink = s_aux
    problem = multihead_problem(pair, value, Options(mask, bias, dropout=dropout), sink)
    if kwargs.get("output_attentions"):
        output, weights = run_with_weights(problem)
        weights = weights.to(value.dtype)
    else:
        output, weights = run(problem).output, None
    if output.ndim > query.ndim:  # (batch, kv_heads, heads_per_kv, queries, value_dim)
        output, weights = output.flatten(1, 2), None if weights is None else weights.flatten(1, 2)
    return output.transpose(1, 2).contiguous(), weights


def _pair_and_sink(
    query: Tensor, key: Tensor, score: ScoreLike | None, scaling: float | None, softcap: float | None
) -> tuple[PairScore, Tensor | None]:
    """Return the pair score of queries and keys, and the logits of the attention sink of the score."""
    resolved = None if score is None else score_by_name(score) if isinstance(score, str) else resolve_score(score)
    query, key = cast_for_autocast(query, resolved), cast_for_autocast(key, resolved)
    if resolved is None:
        softcap = softcap or None  # models without a softcap pass None or 0
        check_softcap(softcap)
        if scaling is not None:
            check_finite("scaling", scaling)
        check_equal_dims(query, key, "the dot product")
        scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scaling is None else float(scaling)
        return DotPair(query, key, scale, softcap), None
    first = key.shape[-2] - query.shape[-2]
    return resolved.pair(resolved.prepare_query(query, first), resolved.prepare_key(key)), resolved.sink_logits()


def _mask_and_bias(
    attention_mask: Tensor | None, queries: int, keys: int, is_causal: bool, sliding_window: int | None
) -> tuple[Mask | None, Tensor | None]:
    """Return the mask and the bias that an attention_mask, is_causal and sliding_window stand for."""
    if attention_mask is not None and attention_mask.ndim == 4:
        attention_mask = attention_mask[..., :keys]
        if attention_mask.dtype == torch.bool:
            return Mask.keep(attention_mask), None
        # transformers marks hidden keys by the lowest number. It is replaced by minus infinity, because the score of a
        # kernel outside its support is minus infinity, and a hidden key must not get more weight than such a key.
        hidden = attention_mask <= torch.finfo(attention_mask.dtype).min
        return None, cast_for_autocast(attention_mask.masked_fill(hidden, -math.inf))
    mask = _position_mask(queries, is_causal, sliding_window)
    if attention_mask is None:
        return mask, None
    padding = Mask.keys(attention_mask[:, :keys] != 0)
    return (padding if mask is None else padding & mask), None


def _check_kwargs(kwargs: dict[str, Any]) -> None:
    """Raise a RegardError for an argument that is not supported, and for every tensor with an unknown name."""
    for name, given in kwargs.items():
        if given is None or name in IGNORED_ARGUMENTS:
            continue
        if name in UNSUPPORTED_ARGUMENTS:
            repair = UNSUPPORTED_ARGUMENTS[name]
            raise RegardError(name, got=describe(given), needed="None, because it is not supported", repair=repair)
        if isinstance(given, Tensor):
            raise RegardError(
                name,
                got=describe(given),
                needed="no tensor of this name, because its effect on attention is unknown here",
                repair='Call the model without it, or load the model with attn_implementation="eager".',
            )


def _check_mask_function(module: nn.Module, queries: int, keys: int, is_causal: bool) -> None:
    """Raise a RegardError for a call without a mask if transformers dropped the mask or expects it to be made here.

    Modules of other libraries are not checked. Those of transformers have a config that names their attention.
    """
    masking = sys.modules.get("transformers.masking_utils")
    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if masking is None or not isinstance(name, str):
        return
    mask_function = masking.ALL_MASK_ATTENTION_FUNCTIONS.get(name)
    repair = f'Call regard.register_with_transformers("{name}"), which registers a mask function for the same name.'
    if mask_function is None:
        raise RegardError(
            "attention_mask",
            got=f'None from the implementation "{name}" without a mask function',
            needed="a mask function, because transformers drops every mask without one, padding included",
            repair=repair,
        )
    if mask_function is masking.sdpa_mask and is_causal and 1 < queries < keys:
        raise RegardError(
            "attention_mask",
            got=f"None for {queries} queries and {keys} keys from transformers' sdpa_mask",
            needed="a mask that marks the keys of the static cache that are filled",
            repair=repair,
        )


def _position_mask(queries: int, is_causal: bool, sliding_window: int | None) -> Mask | None:
    """Return the mask for is_causal and sliding_window, or None if every query may attend to every key."""
    if sliding_window is not None:
        repair = "Pass 1 for the query's own key only, or None for no window."
        check_int("sliding_window", sliding_window, repair=repair)
        max_distance = sliding_window - 1
        return Mask.window(max_distance, 0 if is_causal else max_distance, align="lower_right")
    # A single query has the position of the last key, so a causal mask would hide nothing.
    return Mask.causal(align="lower_right") if is_causal and queries > 1 else None


def _check_mask(mask: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Raise a RegardError unless an attention_mask fits the shape of the scores, (batch, heads, queries, keys)."""
    batch, keys = shape[0], shape[-1]
    if mask.ndim not in (2, 4):
        raise RegardError(
            "attention_mask",
            got=describe(mask),
            needed="4-D (batch, heads or 1, queries, keys) or 2-D (batch, keys)",
            repair="Add an axis of size 1 for each axis over which it is shared.",
        )
    _check_device("attention_mask", mask, device)
    if mask.ndim == 2:
        if mask.shape[0] not in (1, batch) or mask.shape[1] < keys:
            raise RegardError(
                "attention_mask",
                got=describe(mask),
                needed=f"(batch, keys) = {(batch, keys)}",
                repair="Pass a mask with one row for each example, which covers the tokens in the cache, too.",
            )
        _check_padding_mask(mask)
        return
    if mask.dtype != torch.bool and mask.dtype not in FLOATS:
        raise RegardError(
            "attention_mask",
            got=describe(mask),
            needed="a boolean mask, where True may attend, or a floating-point mask, which is added to the scores",
            repair="Pass attention_mask.bool() if 1 means may attend and 0 means must not attend.",
        )
    _check_broadcast("attention_mask", mask, mask[..., :keys].shape, shape)


def _check_padding_mask(mask: Tensor) -> None:
    """Raise a RegardError for a 2-D mask that may be meant to be added, where 0 is a real token instead of padding."""
    if not mask.is_floating_point():
        return
    if not can_read_values(mask):
        found = "values that are not read, because it is on a GPU or under torch.compile"
    elif not ((mask == 0) | (mask == 1)).all():
        found = "numbers other than 0 and 1"
    elif mask.numel() and not mask.any():
        found = "zeros only"
    else:
        return
    raise RegardError(
        "attention_mask",
        got=f"{describe(mask)} with {found}",
        needed="a 2-D mask that is True at real tokens and False at padding",
        repair="Pass attention_mask.bool() if 1 is a real token, or attention_mask == 0 if 0 is a real token.",
    )


def _check_position_bias(bias: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Raise a RegardError unless a position_bias can be added to scores of this shape."""
    _check_device("position_bias", bias, device)
    if bias.dtype not in FLOATS:
        raise RegardError(
            "position_bias",
            got=describe(bias),
            needed="a floating-point tensor, which is added to the scores",
            repair="Pass a boolean mask as attention_mask; convert numbers with position_bias.float().",
        )
    _check_broadcast("position_bias", bias, bias.shape, shape)


def _check_device(name: str, given: Tensor, device: torch.device) -> None:
    """Raise a RegardError unless a tensor is on the device of the query."""
    if given.device != device:
        raise RegardError(
            name,
            got=describe(given),
            needed=f"the device of the query, {device}",
            repair=f"Move it, for example {name}.to(query.device).",
        )


def _check_broadcast(name: str, given: Tensor, used_shape: Sequence[int], shape: tuple[int, ...]) -> None:
    """Raise a RegardError unless the used part of a tensor broadcasts to the shape of the scores."""
    if not can_broadcast(used_shape, shape):
        raise RegardError(
            name,
            got=describe(given),
            needed=f"a shape that broadcasts to (batch, heads, queries, keys) = {shape}",
            repair="Give size 1 to the axes over which it is shared; heads are those of the query.",
        )


def _check_optional_tensor(name: str, given: object) -> None:
    """Raise a RegardError unless an argument is a tensor or None."""
    if given is not None and not isinstance(given, Tensor):
        raise RegardError(
            name, got=describe(given), needed="a torch.Tensor, or None", repair="Convert it with torch.as_tensor."
        )


def _check_sink(s_aux: Tensor, query: Tensor) -> None:
    """Raise a RegardError unless s_aux has one floating-point logit for each head, on the device of the query."""
    if s_aux.shape != query.shape[1:2] or not s_aux.is_floating_point() or s_aux.device != query.device:
        raise RegardError(
            "s_aux",
            got=describe(s_aux),
            needed=f"one floating-point logit for each of the {query.shape[1]} heads, on {query.device}",
            repair=f"Pass a tensor of shape ({query.shape[1]},).",
        )


def _check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise a RegardError unless the tokens are 4-D and the heads of key and value divide those of the query."""
    if query.ndim != 4 or key.shape[1] != value.shape[1] or not key.shape[1] or query.shape[1] % key.shape[1]:
        raise RegardError(
            "key",
            got=f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}",
            needed="(batch, heads, tokens, dim), with equal numbers of heads of key and value, which divide the number "
            "of heads of the query",
            repair="Pass projected heads; the heads of key and value need not be repeated.",
        )


def _attention_function(score: ScoreLike) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the attention function for a score, to be used with the masks of transformers' eager_mask."""
    own_score = None if isinstance(score, str) and score == "scaled_dot" else score

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        sliding_window: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return attention as transformers' eager attention does: without a mask, all keys are allowed."""
        if attention_mask is None:
            is_causal, sliding_window = False, None
        return attention_interface(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            score=own_score,
            sliding_window=sliding_window,
            **kwargs,
        )

    return attention


def _is_builtin_name(interface: Any, name: str) -> bool:
    """Return whether transformers has an implementation of this name itself."""
    registered = interface().get(name)
    return name == "eager" or getattr(registered, "__module__", "").startswith("transformers.")


def _import_transformers() -> tuple[Any, Any, Any]:
    """Return transformers' registries of attention functions and of mask functions, and its eager mask function.

    transformers is imported only here, so that regard works without it.
    """
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise _transformers_error(f"no module named {error.name}") from None
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask
    except ImportError:
        raise _transformers_error(f"transformers {transformers.__version__}") from None
    return AttentionInterface, AttentionMaskInterface, eager_mask


def _transformers_error(got: str) -> RegardError:
    """Return the error for a missing or old transformers."""
    return RegardError(
        "register_with_transformers",
        got=got,
        needed="transformers with AttentionMaskInterface, version 5 or newer",
        repair='Install it with pip install "transformers>=5".',
    )
