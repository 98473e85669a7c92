"""Segmented scans, windows, cells and polynomials, and the sums of compact kernels and the Laplacian made of them."""

import numpy as np
import pytest
import torch
from tests.regression.sums import exact
from tests.regression.sums.exact import Kernel, near_linear

from regard.regression.sums import Observations, can_square, line, pool_squared, running_sums
from regard.regression.sums.line import SortedQueries
from regard.regression.sums.running_sums import (
    SPARE,
    Cells,
    comparison,
    half_windows,
    polynomial,
    rows_by_chunk,
    segmented_scan,
    squared,
    window_ends,
)
from regard.scores.kernels import KERNELS
from regard.scores.names import KERNEL_SCORES


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("keys", [1, 15, 16, 17, 255, 300, 4500])
def test_running_sums_are_those_of_a_loop(keys, backward, monkeypatch):
    monkeypatch.setattr(running_sums, "CHUNK", 1024)
    terms, factor = torch.randn(3, keys, dtype=torch.float64), torch.rand(keys, dtype=torch.float64)
    factor[torch.rand(keys) < 0.1] = 0.0
    loop, before = torch.empty_like(terms), torch.zeros(3, dtype=torch.float64)
    for key in reversed(range(keys)) if backward else range(keys):
        before = loop[:, key] = terms[:, key] + factor[key] * before
    position = torch.arange(-1, keys + 1)
    found = torch.full((3, keys + 2), torch.nan, dtype=torch.float64)
    ranges = rows_by_chunk(position, keys, 3, backward)
    chunks = segmented_scan(lambda chunk: chunk.arrange(terms[:, chunk.rows]), factor, 3, reverse=backward)
    for (chunk, sums), rows in zip(chunks, ranges, strict=True):
        found[:, rows] = sums[:, chunk.find(position[rows].clamp(0, keys - 1))]
    assert torch.allclose(found[:, 1:-1], loop, rtol=0, atol=1e-12)
    assert torch.equal(found[:, [0, -1]], found[:, [1, -2]])


def test_a_factor_of_zero_forgets_everything_before():
    terms = torch.ones(1, 100, dtype=torch.float64)
    terms[:, :50] = 1e300
    factor = torch.ones(100, dtype=torch.float64)
    factor[50] = 0.0
    ((chunk, sums),) = segmented_scan(lambda chunk: chunk.arrange(terms[:, chunk.rows]), factor, 1, reverse=False)
    assert sums[0, chunk.find(torch.tensor(99))] == 50


def ends(key, query, name, width):
    data = Observations(key.unsqueeze(-1), torch.zeros(len(key), 1, dtype=key.dtype))
    line = data.sorted
    asked = SortedQueries.of(query.unsqueeze(-1), line, False)
    found = window_ends(asked, line, width, comparison(KERNELS[name], key.dtype))
    return line.key.to(key.dtype), asked.position.to(key.dtype), *found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("step", "steps"), [(0.1, 1), (0.1, 3), (0.01, 7), (1e-3, 10)])
def test_the_edge_of_a_boxcar_is_the_comparison_of_the_data(dtype, step, steps):
    """On a lattice nearly every window has a key within a rounding of its edge, and each key occurs twice."""
    key = (torch.arange(200, dtype=dtype) * step).repeat(2) + 1
    width = float(torch.tensor(step * steps, dtype=dtype))
    key, place, first, after = ends(key, key, "boxcar", width)
    inside = (place.unsqueeze(-1) - key).abs() <= width
    index = torch.arange(len(key))
    assert torch.equal(inside, (index >= first.unsqueeze(-1)) & (index < after.unsqueeze(-1)))
    counted = (place - width <= 1e9).sum()
    assert counted == len(place)


def test_keys_finer_than_the_rounding_of_their_distance():
    """In float32, 1e6 - k is 1e6 for a thousand distinct k: the end of the window is found by bisection."""
    key = torch.cat([torch.linspace(-0.1, 0.1, 1001), torch.tensor([5e5, 1e6])])
    query = torch.tensor([1e6, -1e6, 0.0])
    key, place, first, after = ends(key, query, "boxcar", 1e6)
    inside = (place.unsqueeze(-1) - key).abs() <= 1e6
    assert 0 < inside[-1].sum() < len(key)
    index = torch.arange(len(key))
    assert torch.equal(inside, (index >= first.unsqueeze(-1)) & (index < after.unsqueeze(-1)))


@pytest.mark.parametrize("name", ["triangular", "tricube"])
def test_the_others_vanish_at_the_edge(name):
    key = torch.arange(10, dtype=torch.float64)
    _, place, first, after = ends(key, key, name, 2.0)
    assert torch.equal(first, (place - 1).clamp(min=0).long())
    assert torch.equal(after, (place + 2).clamp(max=10).long())


@pytest.mark.parametrize("width", [1e-9, 0.01, 0.3, 5.0])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_a_cover_holds_exactly_the_half_window(width, offset):
    key = (torch.rand(200, dtype=torch.float64) + offset).sort().values
    cells = Cells.of(key, width * SPARE)
    first = torch.searchsorted(key, key - width)
    after = torch.arange(1, 201)
    found = half_windows(cells, first, after)
    index = torch.arange(200)
    for row in range(200):
        held = torch.zeros(200)
        if found.suffix[row]:
            held += (cells.rank == cells.rank[first[row]]) & (index >= first[row])
        if found.prefix[row]:
            held += (cells.rank == cells.rank[after[row] - 1]) & (index < after[row])
        if not found.needs_exact[row]:
            assert torch.equal(held == 1, (index >= first[row]) & (index < after[row]))
            assert held.max() <= 1
    assert found.needs_exact.sum() <= 2


def test_only_cells_with_keys_cost_memory():
    cells = Cells.of(torch.tensor([0.0, 1.0, 1e300], dtype=torch.float64), 1e-300)
    assert cells.rank.tolist() == [1, 2, 3]
    assert cells.centre.isfinite().all()


def products(coefficients, query, key, side, powers=1):
    """The factors of the running sums times the powers of the key: (powers, terms, pairs)."""
    matrix = running_sums._query_matrices(coefficients, powers)[side]
    terms = matrix.shape[-1]
    rows = np.arange(terms)[:, None]
    return (matrix @ query**rows) * key**rows


@pytest.mark.parametrize("name", exact.COMPACT)
@pytest.mark.parametrize("power", [0, 2])
@pytest.mark.parametrize("is_right", [False, True])
def test_the_products_are_the_kernel(name, power, is_right):
    """A key at t and a query at s on one side of it, in widths from the centre of a cell."""
    key, distance = np.linspace(-0.5, 0.5, 11), np.linspace(0, 0.999, 11)
    query = key - distance if is_right else key + distance
    coefficients = polynomial(KERNELS[name])
    found = products(coefficients, query, key, int(is_right), power + 1)
    kernel = np.ones_like(distance) if name == "boxcar" else exact.KERNELS[name](distance).astype(float)
    for more in range(power + 1):
        # Each product is rounded a few times, and so is their sum, by the size of what is added.
        allowed = 4 * len(found[more]) * np.finfo(float).eps * np.abs(found[more]).sum(0) + 3e-15
        assert (np.abs(found[more].sum(0) - kernel * (key - query) ** more) <= allowed).all()
    bound = running_sums._absolute(coefficients, torch.tensor(np.abs(query) + 0.5)).numpy()
    assert (bound * (1 + 1e-12) >= np.abs(found[0]).sum(0)).all()


@pytest.mark.parametrize("name", exact.COMPACT)
def test_the_products_of_a_square_are_the_squared_kernel(name):
    key, distance = np.linspace(-0.5, 0.5, 11), np.linspace(0, 0.999, 11)
    for side, sign in enumerate((1, -1)):
        query = key + sign * distance
        found = []
        for kernel in (KERNELS[name], squared(KERNELS[name])):
            terms = products(polynomial(kernel), query, key, side)[0]
            found.append(terms.sum(0))
            bound = running_sums._absolute(polynomial(kernel), torch.tensor(np.abs(query) + 0.5)).numpy()
            assert (bound * (1 + 1e-12) >= np.abs(terms).sum(0)).all()
        np.testing.assert_allclose(found[0] ** 2, found[1], rtol=0, atol=1e-9)


def grid(keys):
    """Keys in an order of their own, evenly drawn on [0, 1]."""
    return Observations(torch.rand(keys, 1, dtype=torch.float64), torch.randn(keys, 1, dtype=torch.float64))


@pytest.mark.parametrize("name", exact.COMPACT)
@pytest.mark.parametrize("exclude", [None, 0])
def test_chunks_do_not_matter(name, exclude, monkeypatch):
    data = grid(400)
    query = data.key if exclude == 0 else torch.rand(300, 1, dtype=torch.float64) * 1.4 - 0.2
    for module, constant, size in (
        (running_sums, "CHUNK", 600),
        (running_sums, "ROWS", 90),
        (running_sums, "ROWS", 70),
        (line, "PAIRS", 50),
    ):
        monkeypatch.setattr(module, constant, size)
    for width in (1e-3, 0.08, 1.5):
        found = near_linear(query, data, Kernel(name, width), exclude=exclude)
        exact.assert_close(found, exact.pool(query, data, Kernel(name, width), exclude), data.value, 2e-12)


@pytest.mark.parametrize("name", exact.COMPACT)
def test_where_data_are_dense_no_row_is_summed_pair_by_pair(name, monkeypatch):
    def refuse(totals, window, *_):
        pytest.fail(f"{len(window.rows)} rows pair by pair")

    monkeypatch.setattr(line, "sum_pairs", refuse)
    data = grid(5000)
    for width in (0.03, 0.3, 1.0, 7.0):
        near_linear(data.key, data, Kernel(name, width))


@pytest.mark.parametrize("name", exact.COMPACT[1:])
def test_a_window_with_keys_at_its_very_edge_only(name):
    """The mass is a cancellation of sums that are far larger: such rows are summed pair by pair."""
    data = Observations(
        torch.linspace(0, 1e-4, 50, dtype=torch.float64).unsqueeze(-1), torch.randn(50, 1, dtype=torch.float64)
    )
    query = torch.tensor([[1.0], [0.99995], [1 + 5e-5], [-0.99999]], dtype=torch.float64)
    found = near_linear(query, data, Kernel(name, 1.0))
    exact.assert_close(found, exact.pool(query, data, Kernel(name, 1.0)), data.value, 1e-9)


def test_a_looser_tolerance_is_kept_too():
    data = grid(300)
    query = torch.linspace(-0.3, 1.3, 200, dtype=torch.float64).unsqueeze(-1)
    judged = exact.pool(query, data, Kernel("tricube", 0.2))
    found = near_linear(query, data, Kernel("tricube", 0.2), tolerance=1e-6)
    exact.assert_close(found, judged, data.value, 1e-6)


def rows(count, dim=1):
    return Observations(torch.rand(count, dim, dtype=torch.float64), torch.rand(count, 1, dtype=torch.float64))


@pytest.mark.parametrize("name", KERNEL_SCORES)
@pytest.mark.parametrize("width", [0.02, 0.3, 4.0])
def test_they_are_the_squares_of_every_pair(name, width):
    data, query = rows(400), torch.linspace(-0.1, 1.1, 301, dtype=torch.float64).unsqueeze(-1)
    kernel = Kernel(name, width)
    task = exact.task_of(query, data, kernel)
    assert can_square(task)
    found = pool_squared(task)
    log, taken_out = exact.log_kernel(name, query[:, 0].numpy(), data.key[:, 0].numpy(), width)
    pairs = np.exp(2 * log)
    mass = pairs.sum(-1)
    seen = mass > 0
    assert np.array_equal(found.log_mass.numpy() > -np.inf, seen)
    judged = np.log(mass[seen]) + 2 * taken_out[seen, 0]
    np.testing.assert_allclose(found.log_mass.numpy()[seen], judged.astype(float), rtol=0, atol=1e-8)
    mean = (pairs @ data.value.numpy())[seen] / mass[seen, None]
    np.testing.assert_allclose(found.mean.numpy()[seen], mean.astype(float), rtol=1e-8)


@pytest.mark.parametrize("name", exact.COMPACT)
def test_where_data_are_dense_no_row_is_summed_pair_by_pair_squares(name, monkeypatch):
    def refuse(totals, window, *_):
        pytest.fail(f"{len(window.rows)} rows pair by pair")

    monkeypatch.setattr(line, "sum_pairs", refuse)
    data = rows(1000)
    for width in (0.03, 0.3, 1.0, 7.0):
        pool_squared(exact.task_of(data.key, data, Kernel(name, width)))


def test_in_several_dimensions_only_squares_that_are_kernels():
    data = rows(50, 2)
    cheap = {name for name in KERNEL_SCORES if can_square(exact.task_of(data.key, data, Kernel(name, 0.3)))}
    assert cheap == {"gaussian", "laplacian", "boxcar", "epanechnikov"}


@pytest.mark.parametrize("width", [1e-5, 0.02, 0.4, 100.0])
@pytest.mark.parametrize("gap", [0.0, 50.0])
def test_chunks_do_not_matter_laplacian(width, gap, monkeypatch):
    monkeypatch.setattr(running_sums, "CHUNK", 1600)
    key = torch.rand(900, 1, dtype=torch.float64)
    data = Observations(torch.where(key > 0.5, key + gap, key), torch.randn(900, 2, dtype=torch.float64))
    query = torch.rand(300, 1, dtype=torch.float64) * (gap + 2) - 0.5
    found = near_linear(query, data, Kernel("laplacian", width), moments=True)
    judged = exact.pool(query, data, Kernel("laplacian", width))
    exact.assert_close(found, judged, data.value, 1e-13)
    exact.assert_moments_close(found.moments, judged.moments, width, 1e-11)
