"""What is tried: every score of the registry, masks and biases, each beside its own formula."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from tests import oracle
from torch import Tensor

from regard import Mask, scores
from regard.scores.names import KERNEL_SCORES, NAMED_SCORES

HEADS = 3
BATCH = (2, HEADS)

PairScore = Callable[[np.ndarray, np.ndarray], float]


class ScoreCase(NamedTuple):
    """A score as a user builds it, and the oracle's function of one pair (or one function for each head)."""

    build: Callable[[], scores.Score]
    formula: Callable[[scores.Score], PairScore | Sequence[PairScore]]
    query_dim: int = 5
    key_dim: int = 5


def array(tensor: Tensor) -> np.ndarray:
    """A tensor as the oracle takes it."""
    return tensor.detach().double().cpu().numpy()


def _bilinear_heads(score):
    matrices = array(score.matrix)
    return [lambda q, k, m=m: oracle.bilinear(q, k, m) for m in matrices]


def _additive_projected(score):
    eye = np.eye(score.hidden_dim)
    return [lambda q, k, w=w: oracle.additive(q, k, eye, eye, w) for w in array(score.weight)]


def _named(name: str) -> ScoreCase:
    return ScoreCase(NAMED_SCORES[name], lambda score: oracle.named(name))


def _learnable(name: str) -> ScoreCase:
    return ScoreCase(
        lambda: KERNEL_SCORES[name](1.25, learnable=True),
        lambda score: oracle.named(name, score.bandwidth.item()),
    )


def _widths(*shape: int) -> Tensor:
    return 0.8 + torch.rand(shape)


SCORES: dict[str, ScoreCase] = {
    **{name: _named(name) for name in NAMED_SCORES},
    **{
        f"{name} learnable": _learnable(name)
        for name, kernel in KERNEL_SCORES.items()
        if kernel().kernel.is_differentiable
    },
    "bilinear": ScoreCase(
        lambda: scores.Bilinear(3, 7),
        lambda score: lambda q, k: oracle.bilinear(q, k, array(score.matrix)),
        query_dim=3,
        key_dim=7,
    ),
    "bilinear per head": ScoreCase(lambda: scores.Bilinear(3, 7, heads=HEADS), _bilinear_heads, 3, 7),
    "additive": ScoreCase(
        lambda: scores.Additive(3, 5, 7),
        lambda score: lambda q, k: oracle.additive(q, k, *(array(p) for p in score.parameters())),
        query_dim=3,
        key_dim=5,
    ),
    "additive per head": ScoreCase(lambda: scores.Additive.of_projected(5, HEADS), _additive_projected),
    "softcap": ScoreCase(
        lambda: scores.ScaledDot(scale=2.0, softcap=1.5),
        lambda score: lambda q, k: oracle.softcap(2.0 * oracle.dot(q, k), 1.5),
    ),
    "cosine scaled": ScoreCase(lambda: scores.Cosine(scale=3.0), lambda score: lambda q, k: 3.0 * oracle.cosine(q, k)),
    "gaussian wide": ScoreCase(lambda: scores.Gaussian(3.0), lambda score: oracle.named("gaussian", 3.0), 19, 19),
    "gaussian per dimension": ScoreCase(
        lambda: scores.Gaussian(_widths(5), learnable=True),
        lambda score: oracle.named("gaussian", array(score.bandwidth)),
    ),
    "triangular per head": ScoreCase(
        lambda: scores.Triangular(_widths(HEADS, 1), learnable=True),
        lambda score: [oracle.named("triangular", h) for h in array(score.bandwidth)],
    ),
    "epanechnikov per head and dimension": ScoreCase(
        lambda: scores.Epanechnikov(_widths(HEADS, 5)),
        lambda score: [oracle.named("epanechnikov", h) for h in array(score.bandwidth)],
    ),
}

# Rotary positions are part of prepare: tokens change with their place, so that a formula of one pair cannot say it.
POSITIONED = {"rotary": lambda: scores.Rotary("scaled_dot")}


# The dot products, which scaled_dot_product_attention takes.
DOTS = ["dot", "scaled_dot", "cosine", "cosine scaled", "bilinear", "bilinear per head", "rotary"]


class MaskCase(NamedTuple):
    """A mask in words, and the same statement as an array (*batch, queries, keys); None allows everything."""

    mask: Mask | None
    allowed: np.ndarray | None


def _none(batch, queries, keys):
    return MaskCase(None, None)


def _lengths(batch, queries, keys):
    lengths = [max(keys - 3, 1), 0]
    allowed = np.array([[[[j < n for j in range(keys)]]] for n in lengths])
    return MaskCase(Mask.lengths(torch.tensor(lengths)), allowed)


def _causal(batch, queries, keys):
    return MaskCase(Mask.causal(align="lower_right"), oracle.causal(queries, keys, keys - queries))


def _top_left(batch, queries, keys):
    return MaskCase(Mask.causal(align="top_left"), oracle.causal(queries, keys))


def _window_without_ends(batch, queries, keys):
    return MaskCase(Mask.window(None, None, align="top_left"), None)


def _lengths_per_query(batch, queries, keys):
    lengths = torch.randint(keys + 1, (batch[0], queries))
    lengths[0, :4] = torch.tensor([0, min(64, keys), keys, 1])[:queries]
    allowed = np.array([[[[j < n for j in range(keys)] for n in row]] for row in lengths.tolist()])
    return MaskCase(Mask.lengths_per_query(lengths), allowed)


def _documents(batch, queries, keys):
    query_ids = torch.arange(queries) // 3
    key_ids = torch.arange(keys) * (queries // 3) // keys
    allowed = np.array([[a == b for b in key_ids.tolist()] for a in query_ids.tolist()])
    expand = (batch[0], -1)
    return MaskCase(Mask.documents(query_ids.expand(expand), key_ids.expand(expand)), allowed)


def _keep(batch, queries, keys):
    matrix = torch.rand(*batch, queries, keys) < 0.4
    matrix[..., 0, :] = False
    return MaskCase(Mask.keep(matrix), matrix.cpu().numpy())


def _combination(batch, queries, keys):
    """Past keys and a few others, inside the length, but never the key of one's own number."""
    others, lengths = torch.rand(queries, keys) < 0.2, [max(keys - 2, 1), keys]
    words = (Mask.causal(align="lower_right") | Mask.keep(others)) & Mask.lengths(torch.tensor(lengths))
    itself = Mask.window(0, 0, align="top_left")
    allowed = oracle.causal(queries, keys, keys - queries) | others.cpu().numpy()
    allowed = allowed & ~np.eye(queries, keys, dtype=bool)
    return MaskCase(words & ~itself, np.stack([allowed & (np.arange(keys) < n) for n in lengths])[:, None])


MASKS = {
    "none": _none,
    "lengths": _lengths,
    "causal": _causal,
    "top_left": _top_left,
    "window_without_ends": _window_without_ends,
    "lengths_per_query": _lengths_per_query,
    "documents": _documents,
    "keep": _keep,
    "combination": _combination,
}

# Shapes of a bias: one entry for each pair, for each key (sample weights), for each query, for each pair of a batch.
BIASES: dict[str, Callable[[tuple[int, ...], int, int], tuple[int, ...]]] = {
    "full": lambda batch, queries, keys: (*batch, queries, keys),
    "keys": lambda batch, queries, keys: (keys,),
    "queries": lambda batch, queries, keys: (batch[-1], queries, 1),
    "shared": lambda batch, queries, keys: (batch[0], 1, 1, keys),
}

# Each mask with one bias or none: the two are independent of each other in every backend.
SETTINGS: dict[str, str | None] = {
    "none": None,
    "lengths": None,
    "causal": "full",
    "top_left": None,
    "window_without_ends": None,
    "lengths_per_query": "keys",
    "documents": None,
    "keep": "shared",
    "combination": "queries",
}
