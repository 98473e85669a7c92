"""Attention layers, the key/value cache of decoders, and an attention implementation for Hugging Face transformers."""

from regard.layers.attention import Attention
from regard.layers.huggingface import attention_interface, register_with_transformers
from regard.layers.memory import Memory
from regard.layers.multihead import MultiHeadAttended, MultiHeadAttention
from regard.scores.positions import Alibi

__all__ = [
    "Alibi",
    "Attention",
    "Memory",
    "MultiHeadAttended",
    "MultiHeadAttention",
    "attention_interface",
    "register_with_transformers",
]
