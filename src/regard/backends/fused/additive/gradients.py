"""What the backward pass of additive attention is given for each row, and what it fills."""

from typing import NamedTuple

from torch import Tensor


class Gradients(NamedTuple):
    """Gradients for each batch element in float32: tokens (batch, count, units), weights for each token likewise."""

    query: Tensor
    key: Tensor
    query_weight: Tensor
    key_weight: Tensor
    value: Tensor
    bias: Tensor | None


class Cotangents(NamedTuple):
    """grad_output: (batch, queries, value_dim); means: dO'o - dlog_mass, log_mass and its gradient: (batch, queries).

    scale: the power of two by which changes are multiplied in half precision, a tensor of one number, 1 for
    exact ones.
    """

    grad_output: Tensor
    means: Tensor
    log_mass: Tensor
    grad_log_mass: Tensor
    scale: Tensor
