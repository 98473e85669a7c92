"""Attention over any score in models of Hugging Face transformers."""

import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.attended import with_weights
from regard.attention.prepare import Options, to_autocast
from regard.backends.dispatch import run
from regard.checks import FLOATS, broadcast_batch, can_broadcast, check_inputs, check_int, check_tensor, describe
from regard.errors import RegardError
from regard.layers.heads import grouped_problem, resolve_score
from regard.masks import Mask
from regard.scores.base import PairScore, check_equal_dims
from regard.scores.dot import DotPair, check_finite, check_softcap
from regard.scores.names import ScoreLike, score_by_name
from regard.torch_compat import can_read_values

# transformers gives these words a meaning wherever they stand in a name: it looks for a kernel or checks the model.
RESERVED = ("flash", "flex_attention", "sdpa")
PACKED = "Say by a 4-D attention_mask which tokens are of one document, or pad the documents, and leave this out."
# What a model may pass that changes the result, and what to do instead.
REFUSED = {
    "head_mask": "Use a MultiHeadAttention and its switch_off, or run the model with eager attention.",
    **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens_q", "cu_seqlens_k", "seq_idx"), PACKED),
}
# Arguments that are accepted and not read. The mask has to contain the effect of positions; the others do not change
# attention.
IGNORED = frozenset(
    ("position_ids", "cache_position", "token_type_ids", "num_items_in_batch", "max_length_q", "max_length_k")
)


def register_with_transformers(name: str = "regard", score: ScoreLike = "scaled_dot") -> None:
    """Register an attention implementation of that name with Hugging Face transformers.

    Load a model with `attn_implementation=name`, or call `model.set_attn_implementation(name)`. A second call with
    the same name replaces the first. Registers the attention function and its mask function.

    Args:
        name: letters, digits, hyphens and underscores. Names of transformers' own implementations are refused, and
            names that contain "flash", "flex_attention" or "sdpa", which transformers treats as its own.
        score: a name, a score or a callable. "scaled_dot" is the model's own dot product, with its scaling and its
            softcap; any other score takes their place.

    Raises:
        RegardError: for such a name, an unknown score, and where transformers is missing or too old.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise RegardError(
            "name",
            got=f"{name!r:.80}",
            needed="a name of letters, digits, hyphens and underscores",
            repair='Use for example "regard".',
        )
    resolve_score(score)
    interface, mask_interface, eager_mask = _transformers()
    reserved = [word for word in RESERVED if word in name]
    if reserved or _is_its_own(interface, name):
        raise RegardError(
            "name",
            got=repr(name),
            needed=f'a name without "{reserved[0]}"' if reserved else "a name that transformers does not use itself",
            repair='Use for example "regard".',
        )
    interface.register(name, _attention_of(score))
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
    """Attend as a transformers model asks for it.

    Call `regard.register_with_transformers` rather than registering this function yourself. If you do register it,
    the same name needs a mask function in transformers' `AttentionMaskInterface`: without one, transformers drops
    every mask, padding included, and the call is refused. Their `sdpa_mask` serves models with a dynamic cache that
    take boolean masks; the prompt of a static cache without padding is refused, and models that do not use
    `AttentionInterface` at all compute wrong numbers with it.

    Args:
        module: the model's attention module; its `is_causal` is read where the argument is None.
        query: (batch, heads, queries, dim).
        key: (batch, kv_heads, keys, dim); kv_heads divides heads.
        value: (batch, kv_heads, keys, value_dim).
        attention_mask: None; 4-D boolean, True may attend; 4-D floating point, added to the scores, where the lowest
            number of its dtype means "may not attend"; or 2-D (batch, keys), True or 1 at real tokens, False or 0 at
            padding. Keys beyond those that exist are cut off. A 2-D mask in floating point might be meant to be added:
            it is refused unless it holds ones, and zeros at most beside them, and always where that cannot be seen
            without waiting: on a GPU, and under torch.compile.
        dropout: applied whenever it is above 0.
        scaling: the factor of the dot product; 1 / sqrt(dim) by default.
        is_causal: whether a query sees no later key, where no 4-D mask says so; the last query stands at the last key.
        score: any score in place of the dot product, which then takes `scaling` and `softcap` with it.
        softcap: bends the scores smoothly into (-softcap, softcap).
        sliding_window: how many keys back a query sees, itself included, where no 4-D mask says so.
        s_aux: logits of a sink for each head, (heads,): mass that goes to no key.
        position_bias: added to the scores, floating point, broadcastable to (batch, heads, queries, keys).
        kwargs: everything else a model passes; `output_attentions=True` asks for weights. `head_mask`, the
            `cu_seq_lens_q` and `cu_seq_lens_k` of packed sequences, and every tensor of an unknown name are refused.
            `position_ids` and `cache_position` are accepted and not read: packed sequences see each other unless a
            4-D mask keeps them apart.

    Returns:
        (batch, queries, heads, value_dim) and None, or the weights (batch, heads, queries, keys).

    Raises:
        RegardError: for a tensor that it cannot use, and without a mask where transformers has no mask function for
            the model's attention, or one that leaves a causal mask to be guessed.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, tensor)
    check_inputs(query[:, :1], key[:, :1], value[:, :1])
    _check_heads(query, key, value)
    for name, given in (("attention_mask", attention_mask), ("s_aux", s_aux), ("position_bias", position_bias)):
        _check_optional(name, given)
    _check_kwargs(kwargs)
    if attention_mask is None:
        _check_mask_function(module, query.shape[-2], key.shape[-2], is_causal)
    value = to_autocast(value)
    pair, sink = _pair(query, key, score, scaling, softcap)
    sizes = _sizes(pair, value)
    if attention_mask is not None:
        _check_mask(attention_mask, sizes, value.device)
    mask, bias = _mask_and_bias(attention_mask, query.shape[-2], key.shape[-2], is_causal, sliding_window)
    if position_bias is not None:
        _check_position_bias(position_bias, sizes, value.device)
        bias = position_bias if bias is None else bias + position_bias
    if s_aux is not None:
        sink = _checked_sink(s_aux, query)
    problem = grouped_problem(pair, value, Options(mask, bias, dropout=dropout), sink)
    if kwargs.get("output_attentions"):
        output, weights = with_weights(problem)
        weights = weights.to(value.dtype)
    else:
        output, weights = run(problem).output, None
    if output.ndim > query.ndim:
        output, weights = output.flatten(1, 2), None if weights is None else weights.flatten(1, 2)
    return output.transpose(1, 2).contiguous(), weights


def _pair(
    query: Tensor, key: Tensor, score: ScoreLike | None, scaling: float | None, softcap: float | None
) -> tuple[PairScore, Tensor | None]:
    """The score over heads, and its sink."""
    chosen = None if score is None else score_by_name(score) if isinstance(score, str) else resolve_score(score)
    query, key = to_autocast(query, chosen), to_autocast(key, chosen)
    if chosen is None:
        softcap = softcap or None  # models without a cap pass None or 0
        check_softcap(softcap)
        check_finite("scaling", scaling)
        check_equal_dims(query, key, "the dot product")
        scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scaling is None else float(scaling)
        return DotPair(query, key, scale, softcap), None
    first = key.shape[-2] - query.shape[-2]
    return chosen.pair(chosen.prepare_query(query, first), chosen.prepare_key(key)), chosen.sink_logits()


def _mask_and_bias(
    attention_mask: Tensor | None, queries: int, keys: int, is_causal: bool, sliding_window: int | None
) -> tuple[Mask | None, Tensor | None]:
    if attention_mask is not None and attention_mask.ndim == 4:
        attention_mask = attention_mask[..., :keys]
        if attention_mask.dtype == torch.bool:
            return Mask.keep(attention_mask), None
        # transformers writes the lowest number for "may not attend". A score may be minus infinity, as that of a
        # kernel beyond its width: beside it the lowest number would win.
        hidden = attention_mask <= torch.finfo(attention_mask.dtype).min
        return None, to_autocast(attention_mask.masked_fill(hidden, -math.inf))
    mask = _by_position(queries, is_causal, sliding_window)
    if attention_mask is None:
        return mask, None
    padding = Mask.keys(attention_mask[:, :keys] != 0)
    return (padding if mask is None else padding & mask), None


def _check_kwargs(kwargs: dict[str, Any]) -> None:
    """Refuse what would change the result and is not supported, and every tensor whose meaning is unknown."""
    for name, given in kwargs.items():
        if given is None or name in IGNORED:
            continue
        if name in REFUSED:
            raise RegardError(name, got=describe(given), needed="None, because it is not read", repair=REFUSED[name])
        if isinstance(given, Tensor):
            raise RegardError(
                name,
                got=describe(given),
                needed="no tensor of this name, because its effect on attention is unknown here",
                repair='Leave it out of the call of the model, or load the model with attn_implementation="eager".',
            )


def _check_mask_function(module: nn.Module, queries: int, keys: int, is_causal: bool) -> None:
    """Refuse a call without a mask where transformers may have dropped the mask, or means it to be built here.

    Modules of other libraries are not checked: transformers' modules have a config that names their attention.
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
            got=f'None, and "{name}" without a mask function in transformers',
            needed="a mask function: without one, transformers drops every mask, padding included",
            repair=repair,
        )
    if mask_function is masking.sdpa_mask and is_causal and 1 < queries < keys:
        raise RegardError(
            "attention_mask",
            got=f"None for {queries} queries and {keys} keys from transformers' sdpa_mask",
            needed="a mask that shows which keys of the static cache are filled",
            repair=repair,
        )


def _by_position(queries: int, is_causal: bool, sliding_window: int | None) -> Mask | None:
    """Causality and window; a single causal query stands at the end and sees everything before it."""
    if sliding_window is not None:
        check_int("sliding_window", sliding_window, repair="1 is the query's own key alone; None is no window.")
        back = sliding_window - 1
        return Mask.window(back, 0 if is_causal else back, align="lower_right")
    return Mask.causal(align="lower_right") if is_causal and queries > 1 else None


def _sizes(pair: PairScore, value: Tensor) -> tuple[int, ...]:
    """(batch, heads, queries, keys), the heads those of the queries."""
    batch = pair.query.shape[:-3]
    for tensor in (pair.key, value, *pair.parameters()):
        batch = broadcast_batch("key", batch, tensor.shape[:-3])
    return (*batch, *pair.query.shape[-3:-1], value.shape[-2])


def _check_mask(mask: Tensor, sizes: tuple[int, ...], device: torch.device) -> None:
    keys = sizes[-1]
    if mask.ndim not in (2, 4):
        raise RegardError(
            "attention_mask",
            got=describe(mask),
            needed="4-D (batch, heads or 1, queries, keys) or 2-D (batch, keys)",
            repair="Add axes of size 1 where it is shared.",
        )
    _check_device("attention_mask", mask, device)
    if mask.ndim == 2:
        if mask.shape[0] not in (1, sizes[0]) or mask.shape[1] < keys:
            raise RegardError(
                "attention_mask",
                got=describe(mask),
                needed=f"(batch, keys) = {(sizes[0], keys)}",
                repair="Pass the mask of all tokens so far, those in the cache included, a row for each sequence.",
            )
        _check_padding(mask)
        return
    if mask.dtype != torch.bool and mask.dtype not in FLOATS:
        raise RegardError(
            "attention_mask",
            got=describe(mask),
            needed="boolean, True may attend; or floating point, added to the scores",
            repair="Write attention_mask.bool() where 1 may attend and 0 may not.",
        )
    _check_fits("attention_mask", mask, mask[..., :keys].shape, sizes)


def _check_padding(mask: Tensor) -> None:
    """Refuse a 2-D mask that may be meant to be added: read as padding, it would say the opposite."""
    if not mask.is_floating_point():
        return
    if not can_read_values(mask):
        found = "numbers that are not read on a GPU or under torch.compile"
    elif not ((mask == 0) | (mask == 1)).all():
        found = "other numbers than 0 and 1"
    elif mask.numel() and not mask.any():
        found = "nothing but 0"
    else:
        return
    raise RegardError(
        "attention_mask",
        got=f"{describe(mask)} with {found}",
        needed="a 2-D mask that is True at real tokens and False at padding",
        repair="Write attention_mask.bool() where 1 is a real token, attention_mask == 0 where 0 is one.",
    )


def _check_position_bias(bias: Tensor, sizes: tuple[int, ...], device: torch.device) -> None:
    _check_device("position_bias", bias, device)
    if bias.dtype not in FLOATS:
        raise RegardError(
            "position_bias",
            got=describe(bias),
            needed="floating point: it is added to the scores",
            repair="Pass a boolean as attention_mask; write position_bias.float() for numbers.",
        )
    _check_fits("position_bias", bias, bias.shape, sizes)


def _check_device(name: str, given: Tensor, device: torch.device) -> None:
    if given.device != device:
        raise RegardError(
            name,
            got=describe(given),
            needed=f"the device of the query, {device}",
            repair=f"Move it, for example {name}.to(query.device).",
        )


def _check_fits(name: str, given: Tensor, used: Sequence[int], sizes: tuple[int, ...]) -> None:
    """used: the shape of the part that is used, which must broadcast."""
    if not can_broadcast(used, sizes):
        raise RegardError(
            name,
            got=describe(given),
            needed=f"sizes that broadcast to (batch, heads, queries, keys) = {sizes}",
            repair="Give size 1 to the axes it is shared over; heads are those of the query.",
        )


def _check_optional(name: str, given: object) -> None:
    if given is not None and not isinstance(given, Tensor):
        raise RegardError(
            name, got=describe(given), needed="a torch.Tensor, or None", repair="Convert it with torch.as_tensor."
        )


def _checked_sink(s_aux: Tensor, query: Tensor) -> Tensor:
    if s_aux.shape != query.shape[1:2] or not s_aux.is_floating_point() or s_aux.device != query.device:
        raise RegardError(
            "s_aux",
            got=describe(s_aux),
            needed=f"a logit for each of the {query.shape[1]} heads, floating point on {query.device}",
            repair="Pass the sinks of this layer, one for each head.",
        )
    return s_aux


def _check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.ndim != 4 or key.shape[1] != value.shape[1] or not key.shape[1] or query.shape[1] % key.shape[1]:
        raise RegardError(
            "key",
            got=f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}",
            needed="(batch, heads, tokens, dim), the heads of key and value dividing those of the query",
            repair="Pass the heads as the model has projected them, before any repetition.",
        )


def _attention_of(score: ScoreLike) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function for that score; its masks come from transformers' eager_mask."""
    chosen = None if isinstance(score, str) and score == "scaled_dot" else score

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
        """Attend as transformers' eager attention does: without a mask, every query sees every key."""
        if attention_mask is None:
            is_causal, sliding_window = False, None
        inputs = module, query, key, value, attention_mask, dropout, scaling, is_causal
        return attention_interface(*inputs, score=chosen, sliding_window=sliding_window, **kwargs)

    return attention


def _is_its_own(interface: Any, name: str) -> bool:
    """Whether transformers uses that name itself: a function of one of its modules, or "eager"."""
    registered = interface().get(name)
    return name == "eager" or getattr(registered, "__module__", "").startswith("transformers.")


def _transformers() -> tuple[Any, Any, Any]:
    """transformers' two registries and its eager mask function; the package is imported here and nowhere else."""
    try:
        import transformers
    except ModuleNotFoundError as missing:
        raise _no_transformers(f"no module named {missing.name}") from None
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask
    except ImportError:
        raise _no_transformers(f"transformers {transformers.__version__}") from None
    return AttentionInterface, AttentionMaskInterface, eager_mask


def _no_transformers(got: str) -> RegardError:
    return RegardError(
        "register_with_transformers",
        got=got,
        needed="transformers with AttentionMaskInterface, version 5 or newer",
        repair='Install it with pip install "transformers>=5".',
    )
