"""Attention as one operator: any scoring function, any mask, weights on demand, memory linear in tokens."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard import scores
    from regard.attention import Attended, attend, inspect, merge, why
    from regard.errors import RegardError
    from regard.layers import (
        Attention,
        Memory,
        MultiHeadAttention,
        attention_interface,
        register_with_transformers,
    )
    from regard.masks import Mask

__version__ = "0.1.0"

__all__ = [
    "Attended",
    "Attention",
    "Mask",
    "Memory",
    "MultiHeadAttention",
    "RegardError",
    "attend",
    "attention_interface",
    "inspect",
    "merge",
    "register_with_transformers",
    "scores",
    "why",
]

# Each public name and its room, loaded when first asked for: `regard --help` does not wait for torch.
_ROOM_OF = {
    "RegardError": "errors",
    "Mask": "masks",
    **dict.fromkeys(["Attended", "attend", "inspect", "merge", "why"], "attention"),
    **dict.fromkeys(
        ["Attention", "Memory", "MultiHeadAttention", "attention_interface", "register_with_transformers"], "layers"
    ),
}
_ROOMS = ("layers", "masks", "plots", "regression", "scores", "sharding", "testing", "translation")


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return import_module(f"regard.{name}")
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    found = getattr(import_module(f"regard.{_ROOM_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
