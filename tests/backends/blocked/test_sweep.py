"""Sweeps over tiles: every pair once, nothing that the mask empties, no memory for what is not there."""

import tracemalloc

import pytest
import torch
from tests import bounds
from tests.contracts.agreement import Case, build, disagreements
from tests.contracts.cases import MASKS
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import Mask
from regard.backends.blocked import sweep
from regard.backends.blocked.sweep import Sweep
from regard.backends.blocked.tiles import DotTiles

CPU = torch.device("cpu")


def make(queries, keys, mask=None, batch=(), dropout=0.0, seed=0):
    placed = None if mask is None else mask.place(batch=batch, queries=queries, keys=keys, device=CPU)
    value = torch.zeros(*batch, 1, 1)
    return Sweep(value, batch, queries, keys, placed, None, dropout, torch.tensor(seed))


def visited(sweeping):
    return [(rows, cols) for rows, columns in sweeping.blocks() for cols in columns]


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (15, 63), (16, 64), (17, 65), (131, 257)])
def test_tiles_cover_every_pair_once(queries, keys, set_limits):
    set_limits(tile_pairs=1)
    seen = torch.zeros(queries, keys, dtype=torch.int64)
    for rows, cols in visited(make(queries, keys)):
        seen[rows, cols] += 1
    assert (seen == 1).all()


def test_a_tile_over_the_whole_batch_keeps_to_its_budget():
    for batch in [(), (7,), (3, 5)]:
        rows, cols = visited(make(5000, 5000, batch=batch))[0]
        elements = torch.Size(batch).numel() * (rows.stop - rows.start) * (cols.stop - cols.start)
        assert elements <= sweep.TILE_ELEMENTS["cpu"]


@pytest.mark.parametrize(
    "mask",
    [
        Mask.causal(),
        Mask.window(3, 0),
        Mask.lengths(torch.tensor(70)),
        Mask.documents(torch.arange(131) // 20, torch.arange(131) // 20),
        ~Mask.causal(),
    ],
    ids=str,
)
def test_exactly_the_tiles_that_the_mask_empties_are_skipped(mask, set_limits):
    set_limits(tile_pairs=1)
    sweeping, everything = make(131, 131, mask), make(131, 131)
    tiles = set(map(str, visited(sweeping)))
    for rows, cols in visited(everything):
        some = bool(sweeping.mask.tile(rows, cols, CPU).any())
        assert (str((rows, cols)) in tiles) == some


def test_a_causal_mask_of_100k_by_100k_costs_no_memory_and_half_the_tiles():
    sweeping = make(100_000, 100_000, Mask.causal())
    tracemalloc.start()
    count = diagonal = 0
    for rows, columns in sweeping.blocks():
        count += len(columns)
        diagonal += sum(sweeping.mask.coverage(rows, cols) is None for cols in columns)
        assert columns[-1].start < rows.stop, "a tile in the future was visited"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    height, width = sweeping._tile_shape()
    whole = -(-100_000 // height) * -(-100_000 // width)
    assert 0.49 * whole < count < 0.51 * whole
    assert diagonal < 0.01 * whole, "only tiles on the diagonal need their mask"


def test_a_tile_that_the_mask_allows_whole_is_not_masked(monkeypatch, set_limits):
    asked = []
    sweeping = make(256, 256, Mask.causal())
    tile = type(sweeping.mask).tile
    monkeypatch.setattr(type(sweeping.mask), "tile", lambda *a: asked.append(a[1:3]) or tile(*a))
    set_limits(tile_pairs=1)
    for rows, cols in visited(sweeping):
        sweeping.finish(torch.zeros(rows.stop - rows.start, cols.stop - cols.start), rows, cols)
    assert asked
    assert all(cols.stop > rows.start for rows, cols in asked), "a tile of the past was masked"


def test_dropout_of_a_tile_is_the_same_when_it_is_recomputed_and_differs_between_tiles():
    sweeping = make(64, 128, dropout=0.5, seed=3)
    like = torch.zeros(16, 64)
    first, again = (sweeping.kept(slice(0, 16), slice(0, 64), like) for _ in range(2))
    other = sweeping.kept(slice(0, 16), slice(64, 128), like)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert sweeping._replace(dropout=0.0).kept(slice(0, 16), slice(0, 64), like) is None


def test_examples_that_are_mapped_draw_by_their_own_seed_or_by_one_for_all():
    like, tile = torch.zeros(4, 6), (slice(0, 4), slice(0, 6))
    alone = make(4, 6, batch=(3,), dropout=0.5, seed=7).kept(*tile, like)
    shared = make(4, 6, batch=(2, 3), dropout=0.5, seed=[7]).kept(*tile, like)
    own = make(4, 6, batch=(2, 3), dropout=0.5, seed=[7, 8]).kept(*tile, like)
    assert shared.shape == (1, 3, 4, 6)
    assert torch.equal(shared[0], alone)
    assert torch.equal(own[0], alone)
    assert not torch.equal(own[1], alone)


def test_the_online_softmax_is_exact_when_the_largest_score_comes_last(set_limits):
    """Scores that rise along the keys: the running peak changes in every tile."""
    set_limits(tile_pairs=1)
    query = torch.ones(1, 1, dtype=torch.float64)
    key = torch.linspace(-500, 500, 257, dtype=torch.float64).unsqueeze(-1)
    value = torch.randn(257, 3, dtype=torch.float64)
    found = regard.inspect(query, key, value, "dot", backend="blocked")
    exact = regard.inspect(query, key, value, "dot", backend="reference")
    bounds.assert_same(found.output, exact.output)
    bounds.assert_same(found.log_mass, exact.log_mass)


@pytest.mark.parametrize("kept", [0, 2**21])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", ["softcap", "additive per head"])
def test_gradients_are_right_whether_scores_are_kept_or_formed_again(score, mask, kept, set_limits):
    set_limits(tile_pairs=1, kept_scores=kept)
    assert disagreements(Case(score, mask, torch.float32), "blocked") == []


def test_the_scores_of_a_small_problem_are_formed_once_and_of_others_twice(monkeypatch, set_limits):
    formed, scores = [], DotTiles.scores
    monkeypatch.setattr(DotTiles, "scores", lambda *at: formed.append(at[1:]) or scores(*at))
    set_limits(tile_pairs=1, kept_scores=3 * 100 * 100)
    tiles = len(visited(make(100, 100)))
    assert tiles > 1
    for heads, times in [(3, 1), (4, 2)]:
        formed.clear()
        query = torch.randn(heads, 100, 2, requires_grad=True)
        regard.attend(query, query, query, "dot", backend="blocked").sum().backward()
        assert len(formed) == times * tiles


def test_nothing_is_kept_where_no_backward_pass_follows(monkeypatch):
    asked = []
    monkeypatch.setattr(Sweep, "room", lambda sweeping: asked.append(sweeping.keep))
    query = torch.randn(40, 3, requires_grad=True)
    for gradient in (True, False):
        with torch.set_grad_enabled(gradient):
            regard.attend(query, query, query, "dot", backend="blocked")
    regard.attend(*(query.detach() for _ in range(3)), "dot", backend="blocked")
    with FlopCounterMode(display=False):  # who watches is told the same shapes whatever the sizes
        regard.attend(query, query, query, "dot", backend="blocked")
    assert asked == [True, False, False, False]


def test_a_checkpoint_is_given_the_same_again_whoever_watches():
    """It compares what is kept the second time with the first."""
    query = torch.randn(2, 40, 3, requires_grad=True)

    def attend(tokens):
        return regard.attend(tokens, tokens, tokens, "dot", backend="blocked")

    (wanted,) = torch.autograd.grad(attend(query).square().sum(), query)
    output = checkpoint(attend, query, use_reentrant=False)
    with FlopCounterMode(display=False):
        (found,) = torch.autograd.grad(output.square().sum(), query)
    torch.testing.assert_close(found, wanted)


def test_the_backward_pass_takes_no_second_room_for_what_is_kept():
    query = torch.randn(1024, 2, requires_grad=True)
    output = regard.attend(query, query, query, "dot", backend="blocked").sum()
    with torch.profiler.profile(profile_memory=True) as profile:
        output.backward()
    zeros = [event.cpu_memory_usage for event in profile.events() if "zeros" in event.name]
    assert 0 < max(zeros) < 1024 * 1024 * 4


def test_kept_scores_serve_a_second_backward_pass():
    query = torch.randn(40, 3, requires_grad=True)
    output = regard.attend(query, query, query, "dot", backend="blocked")
    first, again = (torch.autograd.grad(output.sum(), query, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, again, rtol=0, atol=0)


@pytest.mark.parametrize("elements", [1, 2**18])
@pytest.mark.parametrize("score", ["dot", "gaussian", "additive"])
def test_scores_that_values_of_more_batches_share(score, elements, set_limits):
    set_limits(tile_pairs=elements)
    query, key, value = (torch.randn(n, 70, 6, dtype=torch.float64, requires_grad=True) for n in (1, 1, 3))
    chosen = regard.scores.Additive(6, 6, 9).double() if score == "additive" else score

    def found(backend):
        output = regard.attend(query, key, value, chosen, backend=backend)
        return output, *torch.autograd.grad(output.square().sum(), (query, key, value))

    for tiled, whole in zip(found("blocked"), found("reference"), strict=True):
        torch.testing.assert_close(tiled, whole)


def test_a_gradient_that_nobody_asked_for_is_not_computed(monkeypatch):
    """Only values need a gradient: the tiles' own backward never runs."""
    ran = []
    monkeypatch.setattr(DotTiles, "backward", lambda *a: ran.append(a))
    call = build(Case("dot"), torch.float32)
    output = regard.attend(call.query.detach(), call.key.detach(), call.value, "dot", backend="blocked")
    output.sum().backward()
    assert call.value.grad is not None
    assert ran == []
