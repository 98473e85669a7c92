"""Layers: attention as modules, with the memory that a decoder keeps."""

from regard.layers.attention import Attention
from regard.layers.huggingface import attention_interface
from regard.layers.memory import Memory
from regard.layers.multihead import MultiHeadAttention
from regard.layers.positions import Alibi
from regard.layers.record import MultiHeadAttended
from regard.layers.transformers import register_with_transformers

__all__ = [
    "Alibi",
    "Attention",
    "Memory",
    "MultiHeadAttended",
    "MultiHeadAttention",
    "attention_interface",
    "register_with_transformers",
]
