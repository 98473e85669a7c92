"""Backends broken on purpose: every break must turn the agreement check red, or the check cannot be trusted.

A saboteur is one line of the source changed. A line that is no longer there fails, so that none goes idle unseen.
"""

import inspect
import os
import textwrap
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import pytest
from tests.contracts.additive_ways import take_loops, take_units
from tests.contracts.agreement import Case, disagreements
from tests.contracts.judged import misjudged

from regard.backends import equations, torch_sdpa
from regard.backends.blocked import bounded, chunks, loops, sweep
from regard.backends.blocked.additive import AdditiveTiles
from regard.backends.blocked.chunks import ChunkTiles
from regard.backends.blocked.gaussian import GaussianProduct
from regard.backends.blocked.loops import LoopTiles
from regard.backends.blocked.sweep import Sweep
from regard.backends.blocked.tiles import DistanceTiles, DotTiles
from regard.scores import links

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("REGARD_TEST_DEVICE")), reason="saboteurs break what runs on a CPU; a GPU takes other ways"
)


class Saboteur(NamedTuple):
    """In `owner` (a module or a class), the function `name` has `old` replaced by `new`; `scores` see it."""

    owner: object
    name: str
    old: str
    new: str
    scores: Sequence[str] = ("scaled_dot", "gaussian", "additive")
    large: bool = False

    def __str__(self) -> str:
        """A name for a test."""
        owner = getattr(self.owner, "__name__", "").rpartition(".")[-1]
        return f"{owner}.{self.name}: {self.old} -> {self.new}"

    def strike(self, patch: pytest.MonkeyPatch) -> None:
        """Put the broken function in the place of the sound one."""
        sound = getattr(self.owner, self.name)
        source = textwrap.dedent(inspect.getsource(sound))
        assert self.old in source, f"this saboteur has no line to change: {self}"
        namespace = dict(sound.__globals__)
        exec(source.replace(self.old, self.new), namespace)
        patch.setattr(self.owner, self.name, namespace[self.name])


GAUSSIAN, WIDE = ("gaussian learnable",), ("gaussian wide",)
ADDITIVE = ("additive", "additive per head")

BLOCKED = [
    # The online softmax.
    Saboteur(sweep, "pool_rows", "total.mul_(shrink)", "total"),
    Saboteur(sweep, "pool_rows", "pooled.mul_(shrink)", "pooled"),
    Saboteur(sweep, "pool_rows", "peak = new_peak", "pass"),
    Saboteur(sweep, "pool_rows", "total.log_().add_(peak)", "total.log_()"),
    # Sums without a running maximum.
    Saboteur(bounded, "forward", "sums += product", "sums = product", GAUSSIAN),
    Saboteur(bounded, "forward", "add_(ceiling)", "add_(0)", ("gaussian", "laplacian")),
    Saboteur(bounded, "_weighted_values", "exp_(sweep.bias - ceiling).mT", "1.0", ("gaussian", "biweight")),
    Saboteur(sweep, "exp_", "exp_(), math.exp(least + 1)", "exp_(), 0.5", GAUSSIAN),
    Saboteur(GaussianProduct, "__init__", "-2 * rate * query", "2 * rate * query", GAUSSIAN),
    Saboteur(GaussianProduct, "scores", "self.key[..., cols]", "self.key[..., : cols.stop - cols.start]", GAUSSIAN),
    Saboteur(DistanceTiles, "masses", "clamp_max_(1)", "clamp_max_(2)", ("epanechnikov", "triangular")),
    # The tiles.
    Saboteur(Sweep, "blocks", "in range(0, self.keys, width)", "in range(0, self.keys - width, width)"),
    Saboteur(Sweep, "blocks", "range(0, self.queries, height)", "range(0, self.queries - height, height)"),
    Saboteur(Sweep, "blocks", "is not False", "is True"),
    # Mask and bias.
    Saboteur(Sweep, "forbid", "mask.tile(rows, cols", "mask.tile(rows, slice(cols.start + 1, cols.stop + 1)"),
    Saboteur(Sweep, "forbid", "is True", "is not False"),
    Saboteur(Sweep, "finish", "scores + _bias_tile", "scores + 0 * _bias_tile"),
    # The backward sweep.
    Saboteur(sweep, "backward", "grad.sub_(mean[..., rows, :])", "grad"),
    Saboteur(sweep, "backward", "- grad_log_mass", "+ grad_log_mass"),
    Saboteur(sweep, "backward", "add_shared(_bias_tile(grad_bias, rows, cols), grad)", "grad_bias.zero_()"),
    Saboteur(sweep, "backward", "dropped.mT @ grad_rows", "0.99 * dropped.mT @ grad_rows"),
    # Dot products.
    Saboteur(DotTiles, "backward", "grad = grad * self.scale", "pass", ("scaled_dot", "bilinear")),
    Saboteur(DotTiles, "backward", "1 - bent.square_()", "1 - 0 * bent", ("softcap",)),
    Saboteur(DotTiles, "backward", "grad.mT @ self.query", "1.01 * grad.mT @ self.query", ("dot",)),
    # Distances.
    Saboteur(DistanceTiles, "backward", "grad * self.link.slope", "-grad * self.link.slope", GAUSSIAN),
    Saboteur(DistanceTiles, "backward", "mul_(-2)", "mul_(-1)", GAUSSIAN),
    Saboteur(DistanceTiles, "_backward_tokens", "pull.sum(-2).neg_()", "pull.sum(-2)", GAUSSIAN),
    Saboteur(DistanceTiles, "_backward_tokens", "query - centre, key - centre", "query - centre, key", WIDE),
    Saboteur(DistanceTiles, "_squared", "total.addcmul_(difference, difference)", "pass", GAUSSIAN),
    Saboteur(links.NegativeSquare, "slope", "-self.rate", "self.rate", GAUSSIAN),
    Saboteur(links.LaplacianLink, "slope", "-0.5 *", "-", ("laplacian",)),
    Saboteur(links.CompactLink, "slope", "/ kernel", "* kernel", ("biweight",)),
    Saboteur(links.TriangularLink, "derivative", "-0.5 *", "0.5 *", ("triangular",)),
    Saboteur(links.EpanechnikovLink, "derivative", "-1.0", "1.0", ("epanechnikov",)),
    Saboteur(links.BiweightLink, "derivative", "-2 *", "-", ("biweight",)),
    Saboteur(links.TricubeLink, "derivative", "-4.5 *", "-3 *", ("tricube",)),
    Saboteur(links.CosineLink, "derivative", "**2", "", ("cosine_kernel",)),
    # Identity A.
    Saboteur(ChunkTiles, "_add_chunks", "-2 * self", "-self", ADDITIVE),
    Saboteur(ChunkTiles, "_add_chunks", ".add_(self.share.sum(-1, keepdim=True))", "", ADDITIVE),
    Saboteur(ChunkTiles, "identity_backward", "pulls.addcmul_(pulls, r, value=-1)", "pass", ADDITIVE),
    Saboteur(ChunkTiles, "identity_backward", "to_keys.mul_(4", "to_keys.mul_(2", ADDITIVE),
    Saboteur(ChunkTiles, "identity_backward", "to_queries.mul_(4 * self.weight)", "to_queries.mul_(4)", ADDITIVE),
    Saboteur(ChunkTiles, "identity_backward", "- 2 * shares", "+ 2 * shares", ADDITIVE),
    Saboteur(
        ChunkTiles, "_chunks", "_cut(slice(0, width), most_keys)", "_cut(slice(0, width), most_keys)[:1]", ADDITIVE
    ),
    Saboteur(ChunkTiles, "_chunks", "v[..., keys, :]", "v[..., keys, :].flip(-2)", ADDITIVE),
    Saboteur(AdditiveTiles, "_tanh_backward", ".neg_().add_(1)", ".neg_()", ADDITIVE, large=True),
    Saboteur(AdditiveTiles, "_tanh_scores", "range(self.query.shape[-1])", "range(1)", ADDITIVE, large=True),
    Saboteur(AdditiveTiles, "_within_reach", "<= self.reach and", "<= 99 * self.reach or", ADDITIVE, large=True),
]

# Identity A in wide tiles.
WIDE = [
    Saboteur(ChunkTiles, "_add_units", "-2 * self.share * u", "-2 * u", ADDITIVE),
    Saboteur(ChunkTiles, "_add_units", "part.copy_", "part.zero_().sub", ADDITIVE),
    Saboteur(ChunkTiles, "_add_units", "whole.add_(part)", "whole.copy_(part)", ADDITIVE),
    Saboteur(ChunkTiles, "_add_units", "scores.add_(whole)", "scores.copy_(whole)", ADDITIVE),
    Saboteur(ChunkTiles, "_add_units", "torch.add(u_h, v_h", "torch.sub(u_h, -2 * v_h", ADDITIVE),
]

# Identity A as compiled callers have it.
LOOPS = [
    Saboteur(loops, "_r", "u / (u + v)", "u / (u + 2 * v)", ADDITIVE),
    Saboteur(loops, "_scores", "1 - 2 *", "1 -", ADDITIVE),
    Saboteur(loops, "_pulls", "r - r * r", "r", ADDITIVE),
    Saboteur(loops, "_pulls", "1 - 2 * r", "2 * r", ADDITIVE),
    Saboteur(LoopTiles, "identity_backward", "tanhs.sum(-2, keepdim=True)", "tanhs[..., :1, :]", ADDITIVE),
    Saboteur(LoopTiles, "identity_backward", "v, u, grad.mT)", "v, u, 2 * grad.mT)", ADDITIVE),
    Saboteur(LoopTiles, "identity_scores", "self.v[..., cols, :]", "self.v[..., cols, :].flip(-2)", ADDITIVE),
]

DOT = ("scaled_dot", "dot", "cosine")
TORCH = [
    Saboteur(torch_sdpa, "_call", "dropout, causal", "dropout, False", DOT),
    Saboteur(torch_sdpa, "_call", "scale=form.scale", "scale=1.0", DOT),
    Saboteur(torch_sdpa, "_allowed", "= problem.mask.tile(", "= ~problem.mask.tile(", DOT),
    Saboteur(torch_sdpa, "_allowed", "bias.masked_fill(~allowed, -math.inf)", "bias", DOT),
    Saboteur(torch_sdpa, "_allowed", "if problem.bias is None:", "if True:", DOT),
]

REFERENCE = [
    Saboteur(equations, "softmax", "mass / total", "mass / (total + 1e-6)", DOT),
    Saboteur(equations, "softmax", "total.log() + peak", "total.log()", DOT),
    Saboteur(equations, "scores", "masked_fill(~allowed", "masked_fill(allowed", DOT),
    Saboteur(equations, "scores", "result + tile", "result - tile", DOT),
    Saboteur(equations, "pair_scores", "@ key.mT) * scale", "@ key.mT) / scale", DOT),
    Saboteur(equations, "pair_scores", ".tanh_()", ".sin_()", ADDITIVE),
    Saboteur(equations, "pool", "weights @ problem", "weights.square() @ problem", DOT),
    Saboteur(links.TricubeLink, "kernel", "** 3", "** 2", ("tricube",)),
    Saboteur(links.TriangularLink, "kernel", "1 - _root(z)", "1 - z", ("triangular",)),
    Saboteur(links.CompactLink, "of_ratio", "-math.inf", "0.0", ("epanechnikov", "tricube learnable")),
]

MASKS = ("none", "causal", "top_left", "lengths_per_query", "combination", "keep")


def complaints(scores: Sequence[str], backend: str, large: bool) -> list[str]:
    """What the agreement check says, of the first case in which it says anything."""
    for score in scores:
        for mask in MASKS:
            if wrong := disagreements(Case(score, mask, log_mass=backend != "torch", large=large), backend):
                return wrong
    return []


@cache
def sound(scores: Sequence[str], backend: str, large: bool) -> bool:
    """Whether the check is content with the backend as it is."""
    return complaints(scores, backend, large) == []


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setitem(sweep.TILE_ELEMENTS, "cpu", 1)
    monkeypatch.setitem(chunks.CHUNK, "cpu", 2**10)


@pytest.mark.parametrize("saboteur", BLOCKED, ids=str)
def test_a_broken_blocked_backend_is_caught(saboteur, monkeypatch):
    assert sound(saboteur.scores, "blocked", saboteur.large), "the sound backend disagrees: nothing can be learnt"
    saboteur.strike(monkeypatch)
    assert complaints(saboteur.scores, "blocked", saboteur.large) != []


@pytest.mark.parametrize("saboteur", WIDE, ids=str)
def test_a_broken_wide_tile_is_caught(saboteur, monkeypatch):
    take_units(monkeypatch)
    assert complaints(saboteur.scores, "blocked", large=False) == [], "sound tiles disagree: nothing can be learnt"
    saboteur.strike(monkeypatch)
    assert complaints(saboteur.scores, "blocked", large=False) != []


@pytest.mark.parametrize("saboteur", LOOPS, ids=str)
def test_a_broken_loop_is_caught(saboteur, monkeypatch):
    take_loops(monkeypatch)
    assert complaints(saboteur.scores, "blocked", large=False) == [], "sound loops disagree: nothing can be learnt"
    saboteur.strike(monkeypatch)
    assert complaints(saboteur.scores, "blocked", large=False) != []


@pytest.mark.parametrize("saboteur", TORCH, ids=str)
def test_a_broken_torch_backend_is_caught(saboteur, monkeypatch):
    assert sound(saboteur.scores, "torch", saboteur.large), "the sound backend disagrees: nothing can be learnt"
    saboteur.strike(monkeypatch)
    assert complaints(saboteur.scores, "torch", saboteur.large) != []


@pytest.mark.parametrize("saboteur", REFERENCE, ids=str)
def test_a_broken_reference_is_caught_by_the_oracle(saboteur, monkeypatch):
    found = [misjudged(score, mask) for score in saboteur.scores for mask in MASKS]
    assert not any(found), "the sound reference is misjudged: nothing can be learnt"
    saboteur.strike(monkeypatch)
    assert any(misjudged(score, mask) for score in saboteur.scores for mask in MASKS)
