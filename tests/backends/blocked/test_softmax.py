"""Online softmax over tiles: every pair once, no tile that the mask hides, scores kept or recomputed, exact sums."""

import math
import tracemalloc
from dataclasses import replace

import pytest
import torch
from tests import bounds
from tests.contracts.agreement import Case, build, disagreements
from tests.contracts.cases import MASKS
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import Mask
from regard.backends.blocked import scores, softmax
from regard.backends.blocked.scores import DotScores
from regard.backends.blocked.softmax import TiledProblem
from regard.scores.names import KERNEL_SCORES

CPU = torch.device("cpu")


def make(queries, keys, mask=None, batch=(), dropout=0.0, seed=0):
    placed = None if mask is None else mask.place(batch=batch, queries=queries, keys=keys, device=CPU)
    value = torch.zeros(*batch, 1, 1)
    return TiledProblem(value, batch, queries, keys, placed, None, dropout, torch.tensor(seed))


def visited(loop):
    return [(rows, cols) for rows, columns in loop.blocks() for cols in columns]


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
        assert elements <= scores.TILE_PAIRS["cpu"]


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
    loop, everything = make(131, 131, mask), make(131, 131)
    tiles = set(map(str, visited(loop)))
    for rows, cols in visited(everything):
        some = bool(loop.mask.tile(rows, cols, CPU).any())
        assert (str((rows, cols)) in tiles) == some


def test_a_causal_mask_of_100k_by_100k_costs_no_memory_and_half_the_tiles():
    loop = make(100_000, 100_000, Mask.causal())
    tracemalloc.start()
    count = diagonal = 0
    for rows, columns in loop.blocks():
        count += len(columns)
        diagonal += sum(loop.mask.coverage(rows, cols) is None for cols in columns)
        assert columns[-1].start < rows.stop, "a tile in the future was visited"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    height, width = loop._tile_shape()
    whole = -(-100_000 // height) * -(-100_000 // width)
    assert 0.49 * whole < count < 0.51 * whole
    assert diagonal < 0.01 * whole, "only tiles on the diagonal need their mask"


def test_a_tile_that_the_mask_allows_whole_is_not_masked(monkeypatch, set_limits):
    asked = []
    loop = make(256, 256, Mask.causal())
    tile = type(loop.mask).tile
    monkeypatch.setattr(type(loop.mask), "tile", lambda *a: asked.append(a[1:3]) or tile(*a))
    set_limits(tile_pairs=1)
    for rows, cols in visited(loop):
        loop.add_bias_and_mask(torch.zeros(rows.stop - rows.start, cols.stop - cols.start), rows, cols)
    assert asked
    assert all(cols.stop > rows.start for rows, cols in asked), "a tile of the past was masked"


def test_dropout_of_a_tile_is_the_same_when_it_is_recomputed_and_differs_between_tiles():
    loop = make(64, 128, dropout=0.5, seed=3)
    like = torch.zeros(16, 64)
    first, again = (loop.dropout_mask(slice(0, 16), slice(0, 64), like) for _ in range(2))
    other = loop.dropout_mask(slice(0, 16), slice(64, 128), like)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert replace(loop, dropout=0.0).dropout_mask(slice(0, 16), slice(0, 64), like) is None


def test_examples_that_are_mapped_draw_by_their_own_seed_or_by_one_for_all():
    like, tile = torch.zeros(4, 6), (slice(0, 4), slice(0, 6))
    alone = make(4, 6, batch=(3,), dropout=0.5, seed=7).dropout_mask(*tile, like)
    shared = make(4, 6, batch=(2, 3), dropout=0.5, seed=[7]).dropout_mask(*tile, like)
    own = make(4, 6, batch=(2, 3), dropout=0.5, seed=[7, 8]).dropout_mask(*tile, like)
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
    formed, compute = [], DotScores.scores
    monkeypatch.setattr(DotScores, "scores", lambda *at: formed.append(at[1:]) or compute(*at))
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
    forward = softmax.forward
    monkeypatch.setattr(softmax, "forward", lambda *at: asked.append(at[2]) or forward(*at))
    query = torch.randn(40, 3, requires_grad=True)
    for gradient in (True, False):
        with torch.set_grad_enabled(gradient):
            regard.attend(query, query, query, "dot", backend="blocked")
    regard.attend(*(query.detach() for _ in range(3)), "dot", backend="blocked")
    with FlopCounterMode(display=False):  # an intercepted call has the same shapes at any size
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
    monkeypatch.setattr(DotScores, "accumulate", lambda *a: ran.append(a))
    call = build(Case("dot"), torch.float32)
    output = regard.attend(call.query.detach(), call.key.detach(), call.value, "dot", backend="blocked")
    output.sum().backward()
    assert call.value.grad is not None
    assert ran == []


DTYPES = [torch.float32, torch.float64]


@pytest.fixture
def small_tiles(set_limits):
    set_limits(tile_pairs=1)


@pytest.fixture
def redone(monkeypatch):
    """The blocks of queries that online softmax sweeps again."""
    blocks, online_softmax = [], softmax.online_softmax
    monkeypatch.setattr(softmax, "online_softmax", lambda *at: blocks.append(at[2].start) or online_softmax(*at))
    return blocks


@pytest.fixture
def ran(monkeypatch):
    """How often this sweep ran."""
    calls, forward = [], softmax._forward_without_maximum
    monkeypatch.setattr(softmax, "_forward_without_maximum", lambda *at: calls.append(at) or forward(*at))
    return calls


def assert_as_exact(query, key, value, score, **settings):
    found = regard.inspect(query, key, value, score, backend="blocked", **settings)
    reference = regard.inspect(query, key, value, score, backend="reference", **settings)
    wide = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in settings.items()}
    exact = regard.inspect(query.double(), key.double(), value.double(), score, backend="reference", **wide)
    for name in ("output", "log_mass"):
        results = getattr(found, name), getattr(reference, name), getattr(exact, name)
        if query.dtype == torch.float64:
            bounds.assert_close(results[0], results[2], bounds.roundings(results[2], 64), name)
        else:
            bounds.assert_as_good(*results, name)
    return found


@pytest.mark.parametrize("kernel", KERNEL_SCORES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("small_tiles")
def test_every_kernel_takes_it_with_and_without_weights_of_keys(kernel, dtype, ran, redone):
    query, key, value = (torch.randn(*shape, dtype=dtype) for shape in [(2, 33, 3), (2, 150, 3), (2, 150, 4)])
    score = KERNEL_SCORES[kernel]() if kernel == "squared_distance" else KERNEL_SCORES[kernel](1.5)
    assert_as_exact(query, key, value, score)
    assert_as_exact(query, key, value, score, bias=(100 * torch.rand(150, dtype=dtype)).log() + 20)
    assert len(ran) == 2
    assert redone == []


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
@pytest.mark.parametrize("away", [3.0, 8.0, 40.0, 1e6])
@pytest.mark.usefixtures("small_tiles")
def test_far_from_every_key_only_that_block_is_swept_again_and_the_nearest_key_is_the_limit(kernel, away, redone):
    key = torch.linspace(0, 1, 130, dtype=torch.float64).unsqueeze(-1)
    query = torch.linspace(0, 1, 40, dtype=torch.float64).unsqueeze(-1)
    query[20] = 1 + 0.05 * away
    value = torch.randn(130, 2, dtype=torch.float64)
    for dtype in DTYPES:
        redone.clear()
        found = assert_as_exact(query.to(dtype), key.to(dtype), value.to(dtype), KERNEL_SCORES[kernel](0.05))
        assert redone in ([], [16])
        assert bool(redone) == bool((found.log_mass < 0.5 * math.log(torch.finfo(dtype).tiny)).any())
    if away == 1e6 and kernel == "gaussian":
        torch.testing.assert_close(found.output[20], value[-1])


@pytest.mark.usefixtures("small_tiles")
def test_an_outlier_outside_the_reach_of_float_adds_nothing():
    key = torch.tensor([[0.0], [0.1], [50.0]])
    value = torch.tensor([[1.0], [2.0], [1e30]])
    found = regard.attend(torch.tensor([[0.05]]), key, value, "gaussian", backend="blocked")
    assert found.item() == pytest.approx(1.5)


@pytest.mark.usefixtures("small_tiles")
def test_keys_of_tiny_weight_count_where_there_are_no_others():
    """The bias is measured from its maximum: e^-300 of that is no float32, but the row has nothing else."""
    key, value = torch.tensor([[0.0], [1000.0]]), torch.tensor([[3.0], [5.0]])
    for kernel in ("gaussian", "boxcar"):
        found = assert_as_exact(torch.tensor([[0.0]]), key, value, kernel, bias=torch.tensor([-300.0, 0.0]))
        assert found.output.item() == 3.0
        assert found.log_mass.item() == -300.0


@pytest.mark.usefixtures("small_tiles")
def test_a_window_without_keys_is_empty_and_costs_no_second_sweep(redone):
    key, value = torch.rand(100, 2), torch.rand(100, 1)
    found = regard.inspect(torch.full((20, 2), 9.0), key, value, "epanechnikov", backend="blocked")
    assert (found.output == 0).all()
    assert found.log_mass.isneginf().all()
    assert redone == []


@pytest.mark.usefixtures("small_tiles")
def test_a_bias_of_pairs_takes_the_online_softmax(ran):
    query, key, value = torch.randn(20, 3), torch.randn(70, 3), torch.randn(70, 1)
    assert_as_exact(query, key, value, "gaussian", bias=torch.randn(20, 70))
    assert_as_exact(query, key, value, "gaussian", bias=torch.full((70,), -math.inf))
    assert ran == []
    assert_as_exact(query, key, value, "gaussian", mask=Mask.causal(align="top_left"))
    assert len(ran) == 1


@pytest.mark.usefixtures("small_tiles")
def test_dropout_drops_what_the_online_softmax_drops(monkeypatch, ran):
    query, key, value = (torch.randn(*shape, dtype=torch.float64) for shape in [(3, 20, 3), (1, 70, 3), (1, 70, 2)])
    torch.manual_seed(1)
    found = regard.inspect(query, key, value, "gaussian", dropout=0.5, backend="blocked")
    plain = regard.inspect(query, key, value, "gaussian", backend="blocked")
    assert len(ran) == 2
    monkeypatch.setattr(softmax, "_needs_no_maximum", lambda *at: False)
    torch.manual_seed(1)
    online = regard.inspect(query, key, value, "gaussian", dropout=0.5, backend="blocked")
    bounds.assert_close(found.output, online.output, bounds.roundings(online.output, 64))
    assert (found.output - plain.output).abs().max() > 0.01
    assert torch.equal(found.log_mass, plain.log_mass)


@pytest.mark.usefixtures("small_tiles")
def test_nan_propagates():
    query, key, value = torch.randn(20, 3), torch.randn(70, 3), torch.randn(70, 1)
    query[3] = torch.nan
    found = regard.attend(query, key, value, "gaussian", backend="blocked")
    assert found.isnan().squeeze(-1).nonzero().flatten().tolist() == [3]
