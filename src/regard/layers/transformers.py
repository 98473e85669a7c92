"""Register attention over any score with Hugging Face transformers, together with the mask function it needs."""

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from regard.errors import RegardError
from regard.layers.huggingface import attention_interface
from regard.layers.scoring import as_score
from regard.scores.names import ScoreLike

# transformers gives these words a meaning wherever they stand in a name: it looks for a kernel or checks the model.
RESERVED = ("flash", "flex_attention", "sdpa")


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
    as_score(score)
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
