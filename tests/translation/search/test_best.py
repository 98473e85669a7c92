"""`best_first`: the largest entries, and among equal ones those of the smallest index, in blocks or not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.translation.search.best import BLOCK, best_first


def by_sorting(entries, count):
    values, indices = entries.float().clamp(max=0.0).sort(dim=-1, descending=True, stable=True)
    return values[..., :count], indices[..., :count]


@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.integers(1, 9 * BLOCK),
    count=st.integers(1, 9),
    levels=st.sampled_from([1, 2, 5, 1000]),
)
def test_agrees_with_a_stable_sort(seed, vocabulary, count, levels):
    generator = torch.Generator().manual_seed(seed)
    entries = -torch.randint(levels, (3, 2, vocabulary), generator=generator).float() / 7
    entries[torch.rand(entries.shape, generator=generator) < 0.2] = -torch.inf
    values, indices = best_first(entries, count)
    wanted_values, wanted_indices = by_sorting(entries, count)
    assert torch.equal(indices, wanted_indices)
    assert torch.equal(values, wanted_values)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_compared_as_float32(dtype):
    entries = torch.randn(4, 1000).log_softmax(-1).to(dtype)
    values, indices = best_first(entries, 5)
    assert values.dtype == torch.float32
    assert torch.equal(indices, by_sorting(entries, 5)[1])


def test_the_two_zeros_are_one_number():
    assert best_first(torch.tensor([-0.0, 0.0, -0.0]), 3)[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("vocabulary", [9, 40 * BLOCK + 3])
def test_a_nan_comes_first_whatever_its_sign(vocabulary):
    entries = torch.full((2, vocabulary), -1.0)
    entries[0, vocabulary - 2] = float("nan")
    entries[1, vocabulary - 1] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)  # a NaN with its sign set
    values, indices = best_first(entries, 2)
    assert values[:, 0].isnan().all()
    assert indices.tolist() == [[vocabulary - 2, 0], [vocabulary - 1, 0]]


def test_the_input_is_left_alone():
    entries = torch.randn(2, 500)
    copy = entries.clone()
    best_first(entries, 3)
    assert torch.equal(entries, copy)


def test_gives_all_there_are_when_asked_for_more():
    assert best_first(torch.tensor([-2.0, -1.0]), 5)[1].tolist() == [1, 0]
