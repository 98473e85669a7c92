"""The lift keeps its promise: its tables, read and rounded as the kernels do it, against tanh and sech² in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.refuses import refuses

from regard.backends.fused.additive.lift import CELLS, CHECKED, MARGIN, RANKS, WIDEST, Side, lift_for, lift_of

REACHES = [(1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (5.0, 5.0), (8.0, 8.0), (1.0, 5.0), (6.0, 2.0), (0.25, 8.0)]


@pytest.fixture(autouse=True)
def _on_the_cpu():
    """Tables are made on the CPU, also where the other tests use a GPU."""
    with torch.device("cpu"):
        yield


def read(table, side: Side, x):
    """A table (CELLS + 1, ...) at x (*shape) by linear interpolation, in the dtype of x: (*shape, ...)."""
    position = (x + side.reach) / (2 * side.reach) * CELLS
    cell = position.long().clamp(0, CELLS - 1)
    share = (position - cell).reshape(*x.shape, *[1] * (table.ndim - 1))
    low, high = table[cell].to(x.dtype), table[cell + 1].to(x.dtype)
    return low + share * (high - low)


def scaled(w):
    """w times a power of two, so that max |w| is in [1/2, 1), and what undoes it."""
    undo = 2.0 ** torch.frexp(w.abs().max()).exponent
    return w / undo, undo


def features(lift, a, b, w, half=torch.float16):
    """Rounded features of a (queries, hidden), b (keys, hidden), in float32; w (hidden) is scaled."""
    query = read(lift.query.values, lift.query, a) * w.unsqueeze(-1)
    return query.to(half).float(), read(lift.key.values, lift.key, b).to(half).float()


def scores(lift, a, b, w, half=torch.float16):
    """eq. 12 as the kernels compute it: one wide product, f and g apart: (queries, keys)."""
    w, undo = scaled(w)
    query, key = features(lift, a, b, w, half)
    alone = (read(lift.query.alone, lift.query, a) @ w)[:, None] + read(lift.key.alone, lift.key, b) @ w
    return (query.flatten(1) @ key.flatten(1).T + alone) * undo


def slopes(lift, a, b, w):
    """Derivatives of the scores in a and in b as the kernels compute them: twice (queries, keys, hidden)."""
    w, undo = scaled(w)
    query, key = features(lift, a, b, w)
    by_query = torch.einsum("qhr,khr->qkh", read(lift.query.slopes, lift.query, a), key)
    by_query = w * (by_query + read(lift.query.slope_alone, lift.query, a)[:, None])
    by_key = torch.einsum("khr,qhr->qkh", read(lift.key.slopes, lift.key, b), query)
    return by_query * undo, (by_key + w * read(lift.key.slope_alone, lift.key, b)) * undo


def broken(lift, a, b, w, half=torch.float16):
    """By how much the scores and both slopes exceed what is promised: ratios, at most 1 if the promise is kept."""
    truth = torch.tanh(a.double()[:, None] + b.double())
    sech, weight = 1 - truth**2, w.double()
    value = (scores(lift, a, b, w, half) - truth @ weight).abs().max() / weight.abs().sum()
    by_query, by_key = ((found - sech * weight).abs() for found in slopes(lift, a, b, w))
    # Weights below float16's normal numbers lose digits in the features of the query only.
    slope = max((by_query / weight.abs()).max(), by_key.max() / weight.abs().max())
    return float(value / lift.value_error), float(slope / lift.slope_error)


def pairs(reach, other, count):
    """a and b (pairs,): ends, zeros, opposites, points between those of the tables, and random ones."""
    ends = torch.tensor([-1, -1 + 0.5 / CELLS, -1 + 1.5 / CELLS, -0.5, -1e-6, 0, 1e-7, 0.3, 1 - 0.5 / CELLS, 1])
    grid = torch.cartesian_prod(ends, ends)
    random = torch.rand(count, 2) * 2 - 1
    a, b = torch.cat([grid, random]).T
    opposed = torch.rand(count) * 2 - 1
    narrower = min(reach, other)
    return torch.cat([a * reach, opposed * narrower]), torch.cat([b * other, -opposed * narrower])


def looked_at(lift, a, b, product):
    """Errors of value, slope in a, slope in b but for rounding to float16, and the sums of their |terms|: (6, ...).

    product sums over features: of all pairs of tokens, or of tokens in pairs.
    """
    query, key = ([read(table, side, x) for table in side[1:]] for side, x in ((lift.query, a), (lift.key, b)))
    (phi, f, up, up_alone), (psi, g, down, down_alone) = query, key
    if product is every:
        a, f, up_alone = a[:, None], f[:, None], up_alone[:, None]
    truth = torch.tanh(a + b)
    sech = 1 - truth**2
    parts = ((phi, psi, f + g - truth), (up, psi, up_alone - sech), (phi, down, down_alone - sech))
    errors = [(product(own, other) + rest).abs() for own, other, rest in parts]
    return torch.stack([*errors, *(product(own.abs(), other.abs()) for own, other, _ in parts)])


def every(own, other):
    return own @ other.T


def in_pairs(own, other):
    return (own * other).sum(-1)


def climb(lift, a, b, quantity):
    """The highest value of one quantity that a search of ever smaller steps finds from a and b."""
    steps = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0], dtype=a.dtype)] * 2)
    size = 1 / 250
    for _ in range(16):
        near = [
            (x[:, None] + size * side.reach * step).clamp(-side.reach, side.reach)
            for x, side, step in ((a, lift.query, steps[:, 0]), (b, lift.key, steps[:, 1]))
        ]
        height, best = looked_at(lift, *near, in_pairs)[quantity].max(1)
        a, b = (x.gather(1, best[:, None])[:, 0] for x in near)
        size *= 0.7
    return height.max()


@pytest.mark.parametrize("rank", [4, 12, 48])
@pytest.mark.parametrize("reaches", REACHES, ids=str)
def test_single_pairs_keep_the_promise(reaches, rank):
    lift = lift_of(*reaches, rank)
    a, b = pairs(*reaches, 10_000)
    w = 0.5 + 0.4999 * torch.rand(len(a))  # one unit, |w|_1 = w: the features of each pair have their own
    truth = torch.tanh(a.double() + b.double())
    phi = (read(lift.query.values, lift.query, a) * w[:, None]).half().float()
    psi = read(lift.key.values, lift.key, b).half().float()
    f, g = read(lift.query.alone, lift.query, a), read(lift.key.alone, lift.key, b)
    value = (((phi * psi).sum(-1) + w * f + w * g) / w - truth).abs().max()
    up = (read(lift.query.slopes, lift.query, a) * psi).sum(-1) + read(lift.query.slope_alone, lift.query, a)
    down = (read(lift.key.slopes, lift.key, b) * phi).sum(-1) / w + read(lift.key.slope_alone, lift.key, b)
    slope = max((found - (1 - truth**2)).abs().max() for found in (up, down))
    assert value <= lift.value_error
    assert slope <= lift.slope_error
    # ... and it is not an empty one.
    assert value >= lift.value_error / 4
    assert slope >= lift.slope_error / 4


@pytest.mark.parametrize("rank", [6, 20])
@pytest.mark.parametrize("reaches", REACHES, ids=str)
def test_the_margin_covers_what_lies_between_the_checked_pairs(reaches, rank):
    lift = lift_of(*reaches, rank)
    a, b = (torch.from_numpy(reach * CHECKED) for reach in reaches)
    seen = looked_at(lift, a, b, every).flatten(1)
    random = looked_at(lift, *(reach * (torch.rand(50_000).double() * 2 - 1) for reach in reaches), in_pairs)
    worst = seen.topk(20).indices
    climbed = [climb(lift, a[at // len(b)], b[at % len(b)], quantity) for quantity, at in enumerate(worst)]
    allowed = MARGIN * seen.amax(1)
    assert (random.amax(1) <= allowed).all()
    assert (torch.stack(climbed) <= allowed).all()


LADDER = st.sampled_from([1.0, 2.0, 4.0, 6.0])
PLACES = st.sampled_from(["random", "ends", "constant", "zeros", "opposed", "tiny"])


def tokens(place, reach, count, hidden, opposite=None):
    """(count, hidden) activations within the reach."""
    if place == "opposed" and opposite is not None:
        return -opposite[:count].clamp(-reach, reach)
    share = {
        "ends": torch.randint(0, 2, (count, hidden)) * 2.0 - 1,
        "constant": (torch.rand(()) * 2 - 1).expand(count, hidden),
        "zeros": torch.zeros(count, hidden),
        "tiny": 1e-6 * torch.randn(count, hidden),
    }.get(place, torch.rand(count, hidden) * 2 - 1)
    return share * reach


@settings(max_examples=40)
@given(
    reaches=st.tuples(LADDER, LADDER),
    tolerance=st.sampled_from([2e-3, 4e-3, 1e-2, 3e-2]),
    gradient=st.booleans(),
    places=st.tuples(PLACES, PLACES),
    hidden=st.integers(1, 64),
    exponents=st.tuples(st.floats(-6, 6), st.floats(-6, 6)),
    seed=st.integers(0, 2**31),
)
def test_scores_and_their_slopes_keep_the_promise(reaches, tolerance, gradient, places, hidden, exponents, seed):
    torch.manual_seed(seed)
    lift = lift_for(*reaches, tolerance, gradient)
    assert lift is not None
    assert lift.value_error <= tolerance
    assert lift.slope_error <= tolerance or not gradient
    low, high = sorted(exponents)
    w = 10 ** (low + (high - low) * torch.rand(hidden)) * (torch.randint(0, 2, (hidden,)) * 2 - 1)
    a = tokens(places[0], reaches[0], 11, hidden)
    b = tokens(places[1], reaches[1], 11, hidden, opposite=a)
    assert max(broken(lift, a, b, w)) <= 1


@pytest.mark.parametrize("small", [2.0**-26, 2.0**-24, 2.0**-22, 2.0**-20, 2.0**-12])
def test_many_weights_below_float16_beside_a_large_one_keep_the_promise(small):
    """Their features are subnormal and err by the same amount each, while |w|_1 hardly grows."""
    lift = lift_of(0.5, 0.5, 6)
    hidden = WIDEST // lift.rank
    w = torch.full((hidden,), small)
    w[0] = 0.5
    a, b = (torch.linspace(-0.5, 0.5, count)[:, None].expand(count, hidden) for count in (37, 41))
    assert max(broken(lift, a, b, w)) <= 1


def test_no_feature_is_subnormal_throughout():
    """Beyond the rank that float16 can show, features are 0."""
    for side in lift_of(1.0, 1.0, 48)[1:3]:
        sizes = side.values.abs().amax(0)
        assert ((sizes == 0) == (side.slopes == 0).all(0)).all()
        assert 8 <= (sizes > 2.0**-12).sum() == (sizes > 0).sum() < 12


def test_bfloat16_would_break_the_promise():
    lift = lift_of(4.0, 4.0, 20)
    a, b, w = 4 * torch.rand(50, 1), -4 * torch.rand(50, 1), torch.ones(1)
    assert broken(lift, a, b, w)[0] <= 1
    assert broken(lift, a, b, w, torch.bfloat16)[0] > 2


def test_tables_are_float32_on_the_cpu():
    lift = lift_of(2.0, 3.0, 6)
    assert (lift.rank, lift.query.reach, lift.key.reach) == (6, 2.0, 3.0)
    for side in (lift.query, lift.key):
        assert [tuple(table.shape) for table in side[1:]] == [(CELLS + 1, 6), (CELLS + 1,)] * 2
        assert all(table.dtype == torch.float32 and table.is_contiguous() for table in side[1:])
        assert all(table.device.type == "cpu" and table.isfinite().all() for table in side[1:])


def test_what_one_token_says_alone_is_odd_and_its_slope_even():
    for side in lift_of(2.0, 3.0, 6)[1:3]:
        torch.testing.assert_close(side.alone, -side.alone.flip(0))
        torch.testing.assert_close(side.slope_alone, side.slope_alone.flip(0))


def test_swapped_reaches_swap_the_sides():
    one, other = lift_of(1.0, 5.0, 6), lift_of(5.0, 1.0, 6)
    torch.testing.assert_close(one.query.alone, other.key.alone)
    torch.testing.assert_close(one.query.values.abs(), other.key.values.abs(), atol=1e-5, rtol=1e-5)
    assert one.value_error == pytest.approx(other.value_error, rel=0.05)


@pytest.mark.parametrize("reaches", REACHES[::2], ids=str)
def test_errors_fall_with_the_rank_down_to_the_floor_of_float16(reaches):
    lifts = [lift_of(*reaches, rank) for rank in RANKS]
    for errors in ([lift.value_error for lift in lifts], [lift.slope_error for lift in lifts]):
        assert (np.diff(errors) <= 0.02 * np.array(errors[1:])).all()
    assert lifts[-1].value_error < 2e-3
    assert lifts[-1].slope_error < 1e-3


@pytest.mark.parametrize("gradient", [False, True])
def test_rank_grows_with_the_reach_and_follows_the_narrower_side(gradient):
    def rank(*reaches):
        return lift_for(*reaches, 3e-3, gradient).rank

    square = [rank(reach, reach) for reach in (1.0, 2.0, 4.0, 6.0, 8.0)]
    assert square == sorted(set(square)), "each is larger than the one before"
    assert rank(1.0, 5.0) == rank(5.0, 1.0) <= rank(1.0, 1.0) + 2 < rank(5.0, 5.0) - 6
    assert rank(2.0, 8.0) <= rank(2.0, 2.0) + 4 < rank(8.0, 8.0) - 6


@pytest.mark.parametrize("reaches", REACHES[1::2], ids=str)
def test_it_is_the_smallest_rank_and_a_gradient_wants_no_less(reaches):
    for tolerance in (2e-3, 1e-2):
        value, both = (lift_for(*reaches, tolerance, gradient) for gradient in (False, True))
        assert value.rank <= both.rank
        fewer = [lift_of(*reaches, rank) for rank in RANKS if rank < both.rank]
        assert all(lift.value_error > tolerance for lift in fewer if lift.rank < value.rank)
        assert all(max(lift.value_error, lift.slope_error) > tolerance for lift in fewer)


def test_what_float16_cannot_promise_is_refused():
    assert lift_for(2.0, 2.0, 1e-5, False) is None
    assert lift_for(5.0, 5.0, 1e-3, False) is None  # two roundings of a sum of size 1 alone are 2^-10
    assert lift_for(40.0, 40.0, 1e-2, False) is None


def test_lifts_are_kept():
    lift = lift_for(3.0, 3.0, 4e-3, True)
    assert lift is lift_for(3.0, 3.0, 4e-3, True)
    assert lift is lift_of(3.0, 3.0, lift.rank)


@pytest.mark.parametrize("rank", [0, 2, 5, 50])
def test_other_ranks_are_refused(rank):
    with refuses("rank", f"got {rank}", "rank_for"):
        lift_of(2.0, 2.0, rank)


@pytest.mark.parametrize(
    ("reaches", "ranks"),
    [
        ((2.0, 2.0), (8, 10)),
        ((4.0, 4.0), (14, 18)),
        ((6.0, 6.0), (20, 26)),
        ((8.0, 8.0), (26, 34)),
        ((1.0, 5.0), (6, 8)),
    ],
    ids=str,
)
def test_ranks_are_those_of_the_best_approximation(reaches, ranks):
    """What tanh(a + b) needs for 1e-3 and 1e-4; f and g are two of it, and to serve slopes too costs up to two."""
    a, b = (torch.from_numpy(reach * CHECKED) for reach in reaches)
    errors = {rank: looked_at(lift_of(*reaches, rank), a, b, every)[0].max() for rank in RANKS if rank <= max(ranks)}
    for tolerance, expected in zip((1e-3, 1e-4), ranks, strict=True):
        assert expected - 2 <= min(rank for rank, error in errors.items() if error <= tolerance) <= expected
