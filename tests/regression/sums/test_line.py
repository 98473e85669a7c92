"""Sorted data and sorted queries: orders, neighbours, weights."""

import torch

from regard.regression.sums import Observations
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
