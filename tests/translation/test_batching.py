"""Rows side by side, and the order in which they waste least."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.translation.batching import batches_by_length, pad


@given(st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=6))
def test_every_row_is_found_again(rows):
    ids, lengths = pad(rows)
    assert ids.dtype == lengths.dtype == torch.int64
    assert ids.shape == (len(rows), max(map(len, rows), default=0))
    assert [row[:length].tolist() for row, length in zip(ids, lengths.tolist(), strict=True)] == rows
    assert all(not row[length:].any() for row, length in zip(ids, lengths.tolist(), strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rows_arrive_on_a_gpu():
    ids, lengths = pad([[4, 3], [3]], "cuda")
    assert ids.device.type == lengths.device.type == "cuda"
    assert ids.tolist() == [[4, 3], [3, 0]]


@given(st.lists(st.integers(0, 9)), st.integers(1, 5))
def test_batches_hold_every_sentence_once_and_the_longest_first(lengths, size):
    batches = batches_by_length(lengths, size)
    order = [row for batch in batches for row in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[row] for row in order] == sorted(lengths, reverse=True)
    assert all(len(batch) == size for batch in batches[:-1])
