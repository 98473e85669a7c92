"""Sorted data and queries, and one-dimensional sums of every kernel against every pair in 80 bits."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.regression.sums import exact
from tests.regression.sums.exact import Kernel, near_linear

from regard.regression import sums
from regard.regression.sums import Observations, all_pairs
from regard.regression.sums.line import SortedQueries


def distances(queries, data):
    return (queries.nearest_key(data) - queries.position).abs().tolist()


def test_a_line_is_the_data_in_the_order_of_the_keys():
    data = Observations(
        torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([[30.0], [10.0], [20.0]]), torch.tensor([1.0, 2.0, 4.0])
    )
    line = data.sorted
    assert line.key.dtype == torch.float64
    assert line.key.tolist() == [1, 2, 3]
    assert (line.value + line.centre).tolist() == [[10, 20, 30]]
    assert line.weighted(slice(0, 2)).tolist() == [[2, 4], [-20, 0]]
    assert line.total_weight == 7
    assert abs(line.log_weight_ratio - torch.tensor(7.0).log()) < 1e-6


def test_the_nearest_key_of_a_query():
    line = Observations(torch.tensor([[0.0], [1.0], [1.0], [5.0]]).double(), torch.zeros(4, 1).double()).sorted
    asked = SortedQueries.of(torch.tensor([[9.0], [-2.0], [1.0], [3.5]]).double(), line, False)
    assert asked.position.tolist() == [-2, 1, 3.5, 9]
    assert distances(asked, line) == [2, 0, 1.5, 4]
    assert distances(SortedQueries.of(line.key, line, True), line) == [1, 0, 0, 4]


def test_a_row_that_stays_in_part_is_its_own_nearest_key():
    data = Observations(
        torch.tensor([[0.0], [4.0]]).double(), torch.zeros(2, 1).double(), torch.tensor([0.5, 2.5]).double()
    )
    line = data.sorted
    asked = SortedQueries.of(data.key, line, True)
    assert asked.remaining_weight is not None
    assert asked.remaining_weight.tolist() == [0, 1.5]
    assert distances(asked, line) == [4, 0]


def test_expanded_values_have_their_median():
    key = torch.arange(53, dtype=torch.float64)[:, None]
    line = Observations(key, torch.tensor([[1.7]], dtype=torch.float64).expand(53, 1)).sorted
    assert float(line.centre) == 1.7


def test_sorted_data_keep_their_order():
    key = torch.tensor([[0.0], [1.0], [1.0], [2.5]], dtype=torch.float64)
    line = Observations(key, key * 2).sorted
    assert line.order.tolist() == [0, 1, 2, 3]
    assert torch.equal(line.key, key[:, 0])


TOLERANCE = 2e-12


def line_of(seed, keys, shape="uniform", offset=0.0, outputs=1, weighted=False):
    """Keys with duplicates, in clusters or evenly; range about 1."""
    draw = torch.Generator().manual_seed(seed)
    key = torch.rand(keys, 1, generator=draw, dtype=torch.float64)
    if shape == "clusters":
        key = (key * 5).floor() / 5 + 1e-3 * torch.rand(keys, 1, generator=draw, dtype=torch.float64)
    elif shape == "duplicates":
        key = (key * 20).round() / 20
    elif shape == "equal":
        key = torch.full_like(key, 0.25)
    value = torch.randn(keys, outputs, generator=draw, dtype=torch.float64)
    weight = 0.1 + 3 * torch.rand(keys, generator=draw, dtype=torch.float64) if weighted else None
    return Observations(key + offset, value, weight)


def places_around(data, width):
    """Inside, at keys, in gaps, and 0.5 to 1e6 bandwidths beyond both ends."""
    low, high = data.key.min(), data.key.max()
    inside = low + (high - low) * torch.linspace(-0.1, 1.1, 41, dtype=torch.float64)
    away = width * torch.tensor([0.5, 0.97, 1.5, 3, 4.5, 6, 8, 40, 1e6], dtype=torch.float64)
    return torch.cat([inside, data.key[:7, 0], low - away, high + away]).unsqueeze(-1)


@pytest.mark.parametrize("name", exact.ALL)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    keys=st.sampled_from([1, 2, 5, 40, 300]),
    shape=st.sampled_from(["uniform", "clusters", "duplicates", "equal"]),
    offset=st.sampled_from([0.0, 1e6]),
    log_width=st.floats(-6, 1),
    outputs=st.sampled_from([1, 3]),
    weighted=st.booleans(),
)
def test_every_kernel_agrees_with_every_pair(name, seed, keys, shape, offset, log_width, outputs, weighted):
    data = line_of(seed, keys, shape, offset, outputs, weighted)
    kernel = Kernel(name, 10.0**log_width)
    query = places_around(data, kernel.width)
    found = near_linear(query, data, kernel, moments=True)
    judged = exact.pool(query, data, kernel)
    exact.assert_close(found, judged, data.value, TOLERANCE)
    exact.assert_moments_close(found.moments, judged.moments, kernel.width, 100 * TOLERANCE)
    found = near_linear(data.key, data, kernel, exclude=0)
    exact.assert_close(found, exact.pool(data.key, data, kernel, exclude=0), data.value, TOLERANCE)


@pytest.mark.parametrize("name", exact.ALL)
@pytest.mark.parametrize("exclude", [None, 0])
def test_it_agrees_with_attend(name, exclude):
    data = line_of(3, 200, outputs=2, weighted=True)
    query = data.key if exclude == 0 else places_around(data, 0.05)[:41]
    moments = exclude is None
    found = near_linear(query, data, Kernel(name, 0.05), exclude=exclude, moments=moments)
    judged = all_pairs.pool(exact.task_of(query, data, Kernel(name, 0.05), exclude=exclude, moments=moments))
    exact.assert_close(found, judged, data.value, TOLERANCE)
    if moments:
        exact.assert_moments_close(found.moments, judged.moments, 0.05, 100 * TOLERANCE)


@pytest.mark.parametrize("name", exact.ALL)
def test_prepared_data_serve_many_widths(name):
    data = line_of(5, 150, weighted=True)
    prepared = data.sorted
    for width in (1e-4, 0.03, 2.0):
        once, again = (near_linear(data.key, one, Kernel(name, width)) for one in (data, replace(data)))
        assert data.sorted is prepared
        assert torch.equal(once.mean, again.mean)
        assert torch.equal(once.log_mass, again.log_mass)


@pytest.mark.parametrize("name", exact.ALL)
def test_integer_weights_are_repetitions_when_a_row_leaves_out_itself(name):
    key = torch.tensor([[0.0], [0.3], [0.35], [1.0], [5.0]], dtype=torch.float64)
    value = torch.tensor([[1.0], [-2.0], [4.0], [0.5], [3.0]], dtype=torch.float64)
    copies = torch.tensor([1, 2, 3, 1, 2])
    rows = torch.arange(5).repeat_interleave(copies)
    weighted = near_linear(key, Observations(key, value, copies.double()), Kernel(name, 0.7), exclude=0)
    repeated = near_linear(key[rows], Observations(key[rows], value[rows]), Kernel(name, 0.7), exclude=0)
    exact.assert_close(
        weighted._replace(mean=weighted.mean[rows], log_mass=weighted.log_mass[rows]), repeated, value, 1e-14
    )


@pytest.mark.parametrize("name", exact.ALL)
def test_a_row_leaves_out_at_most_one_of_itself(name):
    weight = torch.tensor([0.3, 1.0, 2.0, 3.7], dtype=torch.float64)
    data = Observations(
        torch.tensor([[0.0], [0.5], [0.6], [99.0]], dtype=torch.float64), torch.randn(4, 1).double(), weight
    )
    found = near_linear(data.key, data, Kernel(name, 1.0), exclude=0)
    exact.assert_close(found, exact.pool(data.key, data, Kernel(name, 1.0), exclude=0), data.value, 1e-14)
    assert found.mean[3].isclose(data.value[3]).all()


@pytest.mark.parametrize("name", exact.ALL)
@pytest.mark.parametrize("queries", [0, 3])
def test_nothing_to_ask_or_nothing_known(name, queries):
    """No queries, no keys, and one key that is left out."""
    query = torch.zeros(queries, 1, dtype=torch.float64)
    some, none = line_of(0, 4), line_of(0, 0)
    assert near_linear(query, some, Kernel(name, 1.0)).mean.shape == (queries, 1)
    empty = near_linear(query, none, Kernel(name, 1.0), moments=True)
    assert torch.equal(empty.mean, torch.zeros(queries, 1, dtype=torch.float64))
    assert (empty.log_mass == -torch.inf).all()
    one = line_of(0, 1)
    assert near_linear(one.key, one, Kernel(name, 1.0), exclude=0).log_mass.tolist() == [-torch.inf]


@pytest.mark.parametrize("name", exact.ALL)
def test_float32_is_summed_in_float64(name):
    data = Observations(line_of(11, 500).key.float(), line_of(11, 500).value.float())
    found = near_linear(data.key, data, Kernel(name, 0.1))
    assert found.mean.dtype == found.log_mass.dtype == torch.float32
    judged = exact.pool(data.key, data, Kernel(name, float(torch.tensor(0.1))))
    exact.assert_close(found, judged, data.value, 1e-6)


@pytest.mark.parametrize("name", exact.COMPACT)
def test_a_huge_value_outside_the_window_does_not_enter(name):
    data = line_of(2, 400)
    kernel = Kernel(name, 0.05)
    query = data.key[:100] * 0.5
    outside = (data.key > query.max() + kernel.width).squeeze(-1)
    spoilt = replace(data, value=data.value.masked_fill(outside.unsqueeze(-1), 1e15))
    found, clean = near_linear(query, spoilt, kernel), near_linear(query, data, kernel)
    assert (found.mean - clean.mean).abs().max() <= 1e-12


@pytest.mark.parametrize("name", ["gaussian", "laplacian"])
def test_a_huge_value_of_no_weight_does_not_enter(name):
    data = line_of(2, 400)
    kernel = Kernel(name, 2e-4)
    query = data.key[data.key < 0.5].unsqueeze(-1)
    spoilt = replace(data, value=torch.where(data.key > 0.8, 1e15, data.value))
    found, clean = near_linear(query, spoilt, kernel), near_linear(query, data, kernel)
    assert (found.mean - clean.mean).abs().max() <= 1e-10


@pytest.mark.parametrize("name", ["gaussian", "laplacian"])
@pytest.mark.parametrize("width", [1.0, 1e-6, 1e-160])
def test_far_away_the_limit_is_the_nearest_key(name, width):
    """Ties share by weight, log_mass is finite, and a row that leaves out itself finds its nearest other key."""
    key = torch.tensor([[0.0], [0.0], [1e3], [1e7]], dtype=torch.float64)
    data = Observations(
        key, torch.tensor([[1.0], [4.0], [7.0], [9.0]]).double(), torch.tensor([1.0, 2.0, 1.0, 1.0]).double()
    )
    found = near_linear(torch.tensor([[-1e6], [-100.0], [2e7]]).double(), data, Kernel(name, width))
    assert torch.allclose(found.mean, torch.tensor([[3.0], [3.0], [9.0]]).double(), rtol=1e-14)
    assert found.log_mass.isfinite().all()
    alone = near_linear(data.key, replace(data, weight=None), Kernel(name, width), exclude=0)
    assert torch.allclose(alone.mean[[0, 1, 3]], torch.tensor([[4.0], [1.0], [7.0]]).double(), rtol=1e-14)


def test_what_has_no_near_linear_way_goes_through_attend():
    data = line_of(7, 20)
    assert data.is_sortable
    assert not replace(data, key=data.key.expand(-1, 2)).is_sortable
    assert not replace(data, value=data.value.clone().requires_grad_()).is_sortable
    assert sums.line_method(exact.task_of(data.key, data, Kernel("gaussian", 1.0), exclude=2)) is None
    assert sums.line_method(exact.task_of(data.key, data, Kernel("gaussian", torch.ones(20, 1)))) is None
    wide = Kernel("gaussian", torch.full((20, 1), 0.3, dtype=torch.float64))
    for kernel, exclude in ((Kernel("gaussian", 0.3), 2), (wide, None)):
        found = exact.pool_any(data.key, data, kernel, exclude=exclude)
        judged = all_pairs.pool(exact.task_of(data.key, data, kernel, exclude=exclude))
        assert torch.equal(found.mean, judged.mean)


@pytest.mark.parametrize("name", exact.ALL)
def test_a_larger_problem_takes_this_way(name, monkeypatch):
    """`sums.pool` sorts data that are not prepared, and gives what the line gives."""
    data = line_of(9, 400)
    monkeypatch.setattr(all_pairs, "pool", lambda *_, **__: pytest.fail("every pair"))
    found = exact.pool_any(data.key, data, Kernel(name, 0.1))
    assert torch.equal(found.mean, near_linear(data.key, data, Kernel(name, 0.1)).mean)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_weights_count_among_keys_that_tie_however_far_away(kernel):
    data = Observations(
        torch.zeros(2, 1, dtype=torch.float64), torch.tensor([[0.0], [1.0]]).double(), torch.tensor([1.0, 3.0]).double()
    )
    found = exact.pool_any(torch.tensor([[50.0], [1e6], [1e9]]).double(), data, Kernel(kernel, 1.0))
    assert found.mean[:, 0].tolist() == pytest.approx([0.75] * 3, abs=1e-14)
