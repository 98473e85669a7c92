"""Attention pooling over sequences whose tokens live on several ranks."""

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from regard.backends.problem import Bias
from regard.masks import Mask
from regard.pooling.prepare import Settings, to_autocast
from regard.scores.names import ScoreLike, named_score
from regard.sharding.pool import pool_shards
from regard.sharding.pose import pose_plainly

if TYPE_CHECKING:
    from regard.sharding.ring import Group


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: ScoreLike = "scaled_dot",
    mask: Mask | None = None,
    *,
    group: "Group",
    order: str = "contiguous",
    bias: Bias | None = None,
    tolerance: float | None = None,
    travel: str = "auto",
    backend: str = "auto",
) -> Tensor:
    """The same as `regard.attend` on the joined sequences, each rank giving its tokens and getting its queries' output.

    Every rank of the group calls it with the same settings, and runs the backward pass if one does. Keys and values
    travel around the ranks, or queries do and what they have pooled comes back; no rank ever holds all keys. The
    backward pass sends everything around once more. Gradients of query, key and value are those of the sum of all
    ranks' losses; gradients of a score's parameters and of a bias are this rank's share of it, to be summed over the
    ranks as for any other parameter of a model that all of them hold (DistributedDataParallel takes their mean).

    Args:
        query: (*batch, own queries, query_dim); ranks may have different numbers of tokens, also none.
        key: (*batch, own keys, key_dim).
        value: (*batch, own keys, value_dim).
        score: as for `regard.attend`; a callable that learns must be a module.
        mask: who may attend to whom, in positions of the whole sequences; its tensors are those of all tokens, and
            each rank takes the part it needs.
        group: the ranks: a process group, or a DeviceMesh with one axis.
        order: which tokens a rank holds: "contiguous", or "balanced" as `regard.sharding.split` deals them out, so
            that under a causal mask all ranks have the same work.
        bias: as for `regard.attend`, in positions of the whole sequences: a tensor that broadcasts to (*batch, all
            queries, all keys), or a callable of positions.
        tolerance: as for `regard.attend`.
        travel: "keys", "queries", or "auto": whichever moves fewer bytes.
        backend: what runs the blocks, as for `regard.attend`.

    Returns:
        (*batch, own queries, value_dim) in value's dtype. There is no dropout.
    """
    return pool_shards(
        (query, key, value),
        score,
        Settings(mask, bias, tolerance=tolerance),
        group=group,
        order=order,
        project=partial(_cast, score),
        pose=pose_plainly,
        travel=travel,
        backend=backend,
    )


def _cast(score: ScoreLike, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens in the dtypes that autocast gives them in `regard.attend`."""
    score = named_score(score) if isinstance(score, str) else score
    return to_autocast(query, score), to_autocast(key, score), to_autocast(value)
