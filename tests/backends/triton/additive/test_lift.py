"""The error bound of the lift holds for its tables, read and rounded as in the kernels."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.refuses import refuses

from regard.backends.triton.additive.lift import (
    CELLS,
    GRID,
    MARGIN,
    MAX_PRODUCT,
    RANKS,
    Lift,
    Tables,
    lift_of,
    smallest_rank,
)

RANGES = [(1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (5.0, 5.0), (8.0, 8.0), (1.0, 5.0), (6.0, 2.0), (0.25, 8.0)]


@pytest.fixture(autouse=True)
def _on_the_cpu():
    """Make tables on the CPU, even if the other tests use a GPU."""
    with torch.device("cpu"):
        yield


def read(table, side: Tables, x):
    """Return a table (CELLS + 1, ...) at x (*shape) by linear interpolation, (*shape, ...) in the dtype of x."""
    position = (x + side.range) / (2 * side.range) * CELLS
    cell = position.long().clamp(0, CELLS - 1)
    fraction = (position - cell).reshape(*x.shape, *[1] * (table.ndim - 1))
    low, high = table[cell].to(x.dtype), table[cell + 1].to(x.dtype)
    return low + fraction * (high - low)


def scaled(w):
    """Return w scaled by a power of two so that max |w| is in [1/2, 1), and the factor that reverses it."""
    unscale = 2.0 ** torch.frexp(w.abs().max()).exponent
    return w / unscale, unscale


def features(lift, a, b, w, half=torch.float16):
    """Return the rounded features of a (queries, hidden) and b (keys, hidden), in float32; w (hidden) is scaled."""
    query = read(lift.query.values, lift.query, a) * w.unsqueeze(-1)
    return query.to(half).float(), read(lift.key.values, lift.key, b).to(half).float()


def scores(lift, a, b, w, half=torch.float16):
    """Return scores (queries, keys) as the kernels compute them: one wide product, and the own terms."""
    w, unscale = scaled(w)
    query, key = features(lift, a, b, w, half)
    own_terms = (read(lift.query.own_term, lift.query, a) @ w)[:, None] + read(lift.key.own_term, lift.key, b) @ w
    return (query.flatten(1) @ key.flatten(1).T + own_terms) * unscale


def slopes(lift, a, b, w):
    """Return the derivatives of the scores in a and in b as the kernels compute them, (queries, keys, hidden)."""
    w, unscale = scaled(w)
    query, key = features(lift, a, b, w)
    by_query = torch.einsum("qhr,khr->qkh", read(lift.query.slopes, lift.query, a), key)
    by_query = w * (by_query + read(lift.query.own_slope, lift.query, a)[:, None])
    by_key = torch.einsum("khr,qhr->qkh", read(lift.key.slopes, lift.key, b), query)
    return by_query * unscale, (by_key + w * read(lift.key.own_slope, lift.key, b)) * unscale


def error_ratios(lift, a, b, w, half=torch.float16):
    """Return the errors of scores and of slopes, divided by their bounds."""
    truth = torch.tanh(a.double()[:, None] + b.double())
    sech, weight = 1 - truth**2, w.double()
    value = (scores(lift, a, b, w, half) - truth @ weight).abs().max() / weight.abs().sum()
    by_query, by_key = ((found - sech * weight).abs() for found in slopes(lift, a, b, w))
    # Weights below float16's normal numbers lose digits in the features of the query only.
    slope = max((by_query / weight.abs()).max(), by_key.max() / weight.abs().max())
    return float(value / lift.value_error), float(slope / lift.slope_error)


def pairs(query_range, key_range, count):
    """Return a and b (pairs,): ends, zeros, opposite numbers, points between the steps of tables, and random ones."""
    ends = torch.tensor([-1, -1 + 0.5 / CELLS, -1 + 1.5 / CELLS, -0.5, -1e-6, 0, 1e-7, 0.3, 1 - 0.5 / CELLS, 1])
    grid = torch.cartesian_prod(ends, ends)
    random = torch.rand(count, 2) * 2 - 1
    a, b = torch.cat([grid, random]).T
    opposed = torch.rand(count) * 2 - 1
    narrower = min(query_range, key_range)
    return torch.cat([a * query_range, opposed * narrower]), torch.cat([b * key_range, -opposed * narrower])


def errors_and_sizes(lift, a, b, product):
    """Return errors without the rounding to float16, and sums of |terms|: of value, slope in a, slope in b, (6, ...).

    product: sums over features, of all pairs of tokens (`all_pairs`) or of tokens pair by pair (`pair_by_pair`).
    """
    query, key = ([read(table, side, x) for table in side[1:]] for side, x in ((lift.query, a), (lift.key, b)))
    (phi, f, query_slopes, query_own), (psi, g, key_slopes, key_own) = query, key
    if product is all_pairs:
        a, f, query_own = a[:, None], f[:, None], query_own[:, None]
    truth = torch.tanh(a + b)
    sech = 1 - truth**2
    parts = ((phi, psi, f + g - truth), (query_slopes, psi, query_own - sech), (phi, key_slopes, key_own - sech))
    errors = [(product(own, other) + rest).abs() for own, other, rest in parts]
    return torch.stack([*errors, *(product(own.abs(), other.abs()) for own, other, _ in parts)])


def all_pairs(own, other):
    return own @ other.T


def pair_by_pair(own, other):
    return (own * other).sum(-1)


def climb(lift, a, b, quantity):
    """Return the largest value of one quantity near a and b, found by a search with smaller and smaller steps."""
    steps = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0], dtype=a.dtype)] * 2)
    size = 1 / 250
    for _ in range(16):
        near = [
            (x[:, None] + size * side.range * step).clamp(-side.range, side.range)
            for x, side, step in ((a, lift.query, steps[:, 0]), (b, lift.key, steps[:, 1]))
        ]
        height, best = errors_and_sizes(lift, *near, pair_by_pair)[quantity].max(1)
        a, b = (x.gather(1, best[:, None])[:, 0] for x in near)
        size *= 0.7
    return height.max()


def smallest_lift(query_range, key_range, tolerance, gradient) -> Lift:
    """Return the lift of the smallest rank within a tolerance."""
    rank = smallest_rank(query_range, key_range, tolerance, gradient)
    assert rank is not None
    return lift_of(query_range, key_range, rank)


@pytest.mark.parametrize("rank", [4, 12, 48])
@pytest.mark.parametrize("ranges", RANGES, ids=str)
def test_errors_of_single_pairs_are_within_the_bound(ranges, rank):
    lift = lift_of(*ranges, rank)
    a, b = pairs(*ranges, 10_000)
    w = 0.5 + 0.4999 * torch.rand(len(a))  # one hidden unit for each pair, so that sum |w| = w
    truth = torch.tanh(a.double() + b.double())
    phi = (read(lift.query.values, lift.query, a) * w[:, None]).half().float()
    psi = read(lift.key.values, lift.key, b).half().float()
    f, g = read(lift.query.own_term, lift.query, a), read(lift.key.own_term, lift.key, b)
    value = (((phi * psi).sum(-1) + w * f + w * g) / w - truth).abs().max()
    by_query = (read(lift.query.slopes, lift.query, a) * psi).sum(-1) + read(lift.query.own_slope, lift.query, a)
    by_key = (read(lift.key.slopes, lift.key, b) * phi).sum(-1) / w + read(lift.key.own_slope, lift.key, b)
    slope = max((found - (1 - truth**2)).abs().max() for found in (by_query, by_key))
    assert value <= lift.value_error
    assert slope <= lift.slope_error
    # The bound is not far above the error.
    assert value >= lift.value_error / 4
    assert slope >= lift.slope_error / 4


@pytest.mark.parametrize("rank", [6, 20])
@pytest.mark.parametrize("ranges", RANGES, ids=str)
def test_margin_covers_the_pairs_between_the_grid_points(ranges, rank):
    lift = lift_of(*ranges, rank)
    a, b = (torch.from_numpy(limit * GRID) for limit in ranges)
    seen = errors_and_sizes(lift, a, b, all_pairs).flatten(1)
    random = errors_and_sizes(lift, *(limit * (torch.rand(50_000).double() * 2 - 1) for limit in ranges), pair_by_pair)
    worst = seen.topk(20).indices
    climbed = [climb(lift, a[at // len(b)], b[at % len(b)], quantity) for quantity, at in enumerate(worst)]
    allowed = MARGIN * seen.amax(1)
    assert (random.amax(1) <= allowed).all()
    assert (torch.stack(climbed) <= allowed).all()


LADDER = st.sampled_from([1.0, 2.0, 4.0, 6.0])
PLACES = st.sampled_from(["random", "ends", "constant", "zeros", "opposed", "tiny"])


def tokens(place, limit, count, hidden, opposite=None):
    """Return activations (count, hidden) up to a limit."""
    if place == "opposed" and opposite is not None:
        return -opposite[:count].clamp(-limit, limit)
    relative = {
        "ends": torch.randint(0, 2, (count, hidden)) * 2.0 - 1,
        "constant": (torch.rand(()) * 2 - 1).expand(count, hidden),
        "zeros": torch.zeros(count, hidden),
        "tiny": 1e-6 * torch.randn(count, hidden),
    }.get(place, torch.rand(count, hidden) * 2 - 1)
    return relative * limit


@settings(max_examples=40)
@given(
    ranges=st.tuples(LADDER, LADDER),
    tolerance=st.sampled_from([2e-3, 4e-3, 1e-2, 3e-2]),
    gradient=st.booleans(),
    places=st.tuples(PLACES, PLACES),
    hidden=st.integers(1, 64),
    exponents=st.tuples(st.floats(-6, 6), st.floats(-6, 6)),
    seed=st.integers(0, 2**31),
)
def test_errors_of_scores_and_slopes_are_within_the_bound(ranges, tolerance, gradient, places, hidden, exponents, seed):
    torch.manual_seed(seed)
    lift = smallest_lift(*ranges, tolerance, gradient)
    assert lift.value_error <= tolerance
    assert lift.slope_error <= tolerance or not gradient
    low, high = sorted(exponents)
    w = 10 ** (low + (high - low) * torch.rand(hidden)) * (torch.randint(0, 2, (hidden,)) * 2 - 1)
    a = tokens(places[0], ranges[0], 11, hidden)
    b = tokens(places[1], ranges[1], 11, hidden, opposite=a)
    assert max(error_ratios(lift, a, b, w)) <= 1


@pytest.mark.parametrize("small", [2.0**-26, 2.0**-24, 2.0**-22, 2.0**-20, 2.0**-12])
def test_bound_holds_for_many_weights_below_float16_and_a_large_one(small):
    """Their features are subnormal, and each has the same error, while sum |w| hardly grows."""
    lift = lift_of(0.5, 0.5, 6)
    hidden = MAX_PRODUCT // lift.rank
    w = torch.full((hidden,), small)
    w[0] = 0.5
    a, b = (torch.linspace(-0.5, 0.5, count)[:, None].expand(count, hidden) for count in (37, 41))
    assert max(error_ratios(lift, a, b, w)) <= 1


def test_features_that_would_all_be_subnormal_are_0():
    for side in lift_of(1.0, 1.0, 48)[1:3]:
        sizes = side.values.abs().amax(0)
        assert ((sizes == 0) == (side.slopes == 0).all(0)).all()
        assert 8 <= (sizes > 2.0**-12).sum() == (sizes > 0).sum() < 12


def test_error_with_bfloat16_features_would_exceed_the_bound():
    lift = lift_of(4.0, 4.0, 20)
    a, b, w = 4 * torch.rand(50, 1), -4 * torch.rand(50, 1), torch.ones(1)
    assert error_ratios(lift, a, b, w)[0] <= 1
    assert error_ratios(lift, a, b, w, torch.bfloat16)[0] > 2


def test_tables_are_float32_on_the_cpu():
    lift = lift_of(2.0, 3.0, 6)
    assert (lift.rank, lift.query.range, lift.key.range) == (6, 2.0, 3.0)
    for side in (lift.query, lift.key):
        assert [tuple(table.shape) for table in side[1:]] == [(CELLS + 1, 6), (CELLS + 1,)] * 2
        assert all(table.dtype == torch.float32 and table.is_contiguous() for table in side[1:])
        assert all(table.device.type == "cpu" and table.isfinite().all() for table in side[1:])


def test_own_terms_are_odd_and_own_slopes_even():
    for side in lift_of(2.0, 3.0, 6)[1:3]:
        torch.testing.assert_close(side.own_term, -side.own_term.flip(0))
        torch.testing.assert_close(side.own_slope, side.own_slope.flip(0))


def test_swapped_ranges_swap_the_sides():
    one, other = lift_of(1.0, 5.0, 6), lift_of(5.0, 1.0, 6)
    torch.testing.assert_close(one.query.own_term, other.key.own_term)
    torch.testing.assert_close(one.query.values.abs(), other.key.values.abs(), atol=1e-5, rtol=1e-5)
    assert one.value_error == pytest.approx(other.value_error, rel=0.05)


@pytest.mark.parametrize("ranges", RANGES[::2], ids=str)
def test_errors_decrease_with_the_rank_down_to_the_rounding_of_float16(ranges):
    lifts = [lift_of(*ranges, rank) for rank in RANKS]
    for errors in ([lift.value_error for lift in lifts], [lift.slope_error for lift in lifts]):
        assert (np.diff(errors) <= 0.02 * np.array(errors[1:])).all()
    assert lifts[-1].value_error < 2e-3
    assert lifts[-1].slope_error < 1e-3


@pytest.mark.parametrize("gradient", [False, True])
def test_rank_grows_with_the_range_and_depends_on_the_narrower_side(gradient):
    def rank(*ranges):
        return smallest_rank(*ranges, 3e-3, gradient)

    square = [rank(limit, limit) for limit in (1.0, 2.0, 4.0, 6.0, 8.0)]
    assert square == sorted(set(square)), "each is larger than the one before"
    assert rank(1.0, 5.0) == rank(5.0, 1.0) <= rank(1.0, 1.0) + 2 < rank(5.0, 5.0) - 6
    assert rank(2.0, 8.0) <= rank(2.0, 2.0) + 4 < rank(8.0, 8.0) - 6


@pytest.mark.parametrize("ranges", RANGES[1::2], ids=str)
def test_smallest_rank_is_the_smallest_and_no_smaller_with_gradients(ranges):
    for tolerance in (2e-3, 1e-2):
        value, both = (smallest_lift(*ranges, tolerance, gradient) for gradient in (False, True))
        assert value.rank <= both.rank
        fewer = [lift_of(*ranges, rank) for rank in RANKS if rank < both.rank]
        assert all(lift.value_error > tolerance for lift in fewer if lift.rank < value.rank)
        assert all(max(lift.value_error, lift.slope_error) > tolerance for lift in fewer)


def test_no_rank_has_an_error_below_the_rounding_of_float16():
    assert smallest_rank(2.0, 2.0, 1e-5, False) is None
    assert smallest_rank(5.0, 5.0, 1e-3, False) is None  # two roundings of a sum of size 1 are 2^-10
    assert smallest_rank(40.0, 40.0, 1e-2, False) is None


def test_lifts_are_cached():
    assert lift_of(3.0, 3.0, 12) is lift_of(3.0, 3.0, 12)


@pytest.mark.parametrize("rank", [0, 2, 5, 50])
def test_other_ranks_are_refused(rank):
    with refuses("rank", f"got {rank}", "smallest_rank"):
        lift_of(2.0, 2.0, rank)


@pytest.mark.parametrize(
    ("ranges", "ranks"),
    [
        ((2.0, 2.0), (8, 10)),
        ((4.0, 4.0), (14, 18)),
        ((6.0, 6.0), (20, 26)),
        ((8.0, 8.0), (26, 34)),
        ((1.0, 5.0), (6, 8)),
    ],
    ids=str,
)
def test_ranks_are_those_of_the_best_approximation(ranges, ranks):
    """The ranks of tanh(a + b) for 1e-3 and 1e-4; f and g count as 2 of them, and the slopes cost up to 2 more."""
    a, b = (torch.from_numpy(limit * GRID) for limit in ranges)
    errors = {
        rank: errors_and_sizes(lift_of(*ranges, rank), a, b, all_pairs)[0].max() for rank in RANKS if rank <= max(ranks)
    }
    for tolerance, expected in zip((1e-3, 1e-4), ranks, strict=True):
        assert expected - 2 <= min(rank for rank, error in errors.items() if error <= tolerance) <= expected
