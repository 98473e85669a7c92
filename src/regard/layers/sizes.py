"""What a multi-head layer may be built with: heads that divide, and a bias that fits them."""

from collections.abc import Callable

from torch import Tensor

from regard.backends.problem import Bias
from regard.errors import RegardError
from regard.layers.positions import Alibi
from regard.shapes import check_int, describe


def check_kv_heads(heads: int, kv_heads: int) -> int:
    """kv_heads, which must divide heads."""
    check_int("kv_heads", kv_heads)
    if heads % kv_heads:
        raise RegardError(
            "kv_heads",
            got=f"{kv_heads} for {heads} heads",
            needed="a number that divides heads: each head of keys serves as many heads of queries",
            repair="Leave it out for a head of keys for each head.",
        )
    return kv_heads


def check_head_dim(dim: int, heads: int) -> int:
    """The size of a head where none was given."""
    if dim % heads:
        raise RegardError(
            "heads",
            got=f"{heads} for dim {dim}",
            needed="a number of heads that divides dim, or head_dim=",
            repair="Give head_dim, the size of a projected query and key; it need not divide anything.",
        )
    return dim // heads


def check_bias_of_heads(bias: Bias | None, rank: int) -> None:
    """Raise if the third axis from the end could be either the batch or the heads.

    rank: the number of axes of (*batch, heads, queries, keys).
    """
    if isinstance(bias, Tensor) and 2 < bias.ndim < rank and bias.shape[-3] != 1:
        raise RegardError(
            "bias",
            got=f"{describe(bias)}, which may mean rows of the batch or heads of the layer",
            needed="all axes of (*batch, heads, queries, keys), or queries and keys alone",
            repair="Write b[:, None] for a bias of each row of the batch, b[None] for one of each head.",
        )


def check_position_bias(
    bias: Callable[[Tensor, Tensor], Tensor] | None, heads: int
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The bias, which must be code, with a slope for each head where it is ALiBi."""
    if bias is not None and (isinstance(bias, type | Tensor) or not callable(bias)):
        raise RegardError(
            "position_bias",
            got=f"{bias!r:.60}",
            needed="a callable of query positions and key positions",
            repair="Pass for example Alibi(heads).",
        )
    if isinstance(bias, Alibi) and bias.heads != heads:
        raise RegardError(
            "position_bias",
            got=f"Alibi({bias.heads}) for {heads} heads",
            needed="a slope for each head",
            repair=f"Pass Alibi({heads}).",
        )
    return bias
