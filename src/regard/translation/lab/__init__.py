"""The laboratory: the same small model with every kind of attention and with none, measured and drawn."""

from regard.translation.lab.procedure import run

__all__ = ["run"]
