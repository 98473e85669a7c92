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

# Public name -> package. Packages are imported when they are first used, so `regard --help` does not import torch.
_PACKAGE_OF = {
    "RegardError": "errors",
    "Mask": "masks",
    **dict.fromkeys(["Attended", "attend", "inspect", "merge", "why"], "attention"),
    **dict.fromkeys(
        ["Attention", "Memory", "MultiHeadAttention", "attention_interface", "register_with_transformers"], "layers"
    ),
}
_PACKAGES = ("layers", "masks", "plots", "regression", "scores", "sharding", "testing", "translation")


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"regard.{name}")
    if name not in _PACKAGE_OF:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    value = getattr(import_module(f"regard.{_PACKAGE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
