"""`History`: back-pointers are followed through packed batches, weights come along."""

import torch

from regard.translation.search.history import Ends, History
from regard.translation.vocabulary import END


def numbers(*rows):
    return torch.tensor(rows)


def test_traces_back_through_a_packed_batch():
    history = History()
    weights = lambda *rows: torch.tensor(rows, dtype=torch.float32)[..., None].expand(-1, -1, 2)  # noqa: E731
    # Two sentences; the first finishes at step 1 from beam 1, the second at step 2.
    history.write(torch.tensor([0, 1]), numbers([4, 5], [6, 7]), numbers([0, 0], [0, 0]), weights([1], [2]))
    history.write(torch.tensor([0, 1]), numbers([8, END], [9, 4]), numbers([0, 1], [1, 0]), weights([3, 4], [5, 6]))
    history.write(torch.tensor([1]), numbers([END, 5]), numbers([0, 1]), weights([7, 8])[..., :1])
    ends = Ends(
        key=torch.tensor([[-1.0, -torch.inf], [-2.0, -3.0]], dtype=torch.float64),
        total=torch.tensor([[-1.0, -torch.inf], [-2.0, -3.0]], dtype=torch.float64),
        step=numbers([1, 0], [2, 2]),
        slot=numbers([1, 0], [0, 1]),
    )
    (first,), (second, third) = history.trace(ends, 0.0, torch.tensor([2, 1]))
    assert (first.tokens, first.finished) == ((5,), True)
    assert first.alignment.tolist() == [[1, 1], [4, 4]]
    assert (second.tokens, second.finished) == ((7, 9), True)
    assert second.alignment.tolist() == [[2], [6], [7]]
    assert (third.tokens, third.finished) == ((6, 4, 5), False)
    assert third.alignment.tolist() == [[2], [5], [8]]


def test_ends_are_merged_in_order_and_the_earlier_wins_a_tie():
    def ends(keys, step):
        keys = torch.tensor([keys], dtype=torch.float64)
        places = torch.arange(keys.shape[1])[None]
        return Ends(keys, keys, torch.full_like(places, step), places)

    best = ends([-1.0, -3.0], 0).best_with(ends([-3.0, -1.0, -2.0], 1))
    assert best.key.tolist() == [[-1.0, -1.0]]
    assert best.step.tolist() == [[0, 1]]
    assert best.slot.tolist() == [[0, 1]]
    kept = ends([-1.0, -3.0], 0).best_with(ends([-3.0], 1))
    assert kept.step.tolist() == [[0, 0]]


def test_ends_are_kept_and_put_back_by_row():
    none = Ends.none(3, 2, "cpu")
    assert (none.key == -torch.inf).all()
    some = none.keep(torch.tensor([1]))
    some = Ends(some.key + torch.inf, some.total, some.step + 4, some.slot + 5)
    put = none.put(torch.tensor([2]), some)
    assert put.step.tolist() == [[0, 0], [0, 0], [4, 4]]
    assert put.slot.tolist() == [[0, 0], [0, 0], [5, 5]]
