"""Batch axes fold into two, shared axes stay shared, and masks are split into the parts that kernels support."""

import pytest
import torch

from regard.backends.triton.launch import (
    MAX_OFFSET,
    NO_BAND,
    Tile,
    fold,
    kernel_mask_of,
    padded_length,
    padded_size,
    pick_tile,
    shared_groups,
    token_operand,
    transposed,
    unfold,
)
from regard.masks.bound import And, Band, Dense, Lengths, Not, Or

LENGTHS = Lengths(torch.tensor([[[3]]]))


def test_neighbouring_axes_that_are_shared_alike_are_one_group():
    query, key = torch.empty(2, 3, 4, 5, 7), torch.empty(2, 1, 1, 6, 7)
    assert shared_groups((2, 3, 4), [query, query]) == [[0, 1, 2]]
    assert shared_groups((2, 3, 4), [query, key]) == [[0], [1, 2]]
    assert shared_groups((2, 3, 4), [query, torch.empty(1, 3, 1, 6, 7)]) == [[0], [1], [2]]
    assert shared_groups((1, 1), [torch.empty(1, 1, 5, 7)]) == []


def test_fold_keeps_the_order_and_copies_nothing():
    query, key = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5, 1), torch.arange(2.0).reshape(2, 1, 1, 1, 1)
    found = fold((2, 3, 4), [query, key])
    folded, shared = found.tensors
    assert (found.outer, found.inner) == (2, 12)
    assert folded.shape == (2, 12, 5, 1)
    assert shared.shape == (2, 1, 1, 1)
    assert folded.data_ptr() == query.data_ptr()
    assert torch.equal(folded.flatten(), query.flatten())


@pytest.mark.parametrize("batch", [(), (1,), (3,), (1, 3)])
def test_fold_adds_axes_of_size_1(batch):
    found = fold(batch, [torch.empty(*batch, 5, 7)])
    assert found.tensors[0].shape == (1, 3 if 3 in batch else 1, 5, 7)
    assert (found.outer, found.inner) == found.tensors[0].shape[:2]


def test_fold_expands_tensors_that_share_axes_in_more_than_two_groups():
    batch = (2, 3, 4)
    query, key = torch.randn(2, 3, 4, 5, 7), torch.randn(2, 1, 4, 6, 7)
    found = fold(batch, [query, key])
    assert (found.outer, found.inner) == (6, 4)
    assert torch.equal(found.tensors[0], query.reshape(6, 4, 5, 7))
    assert torch.equal(found.tensors[1], key.expand(2, 3, 4, 6, 7).reshape(6, 4, 6, 7))


def test_unfold_sums_over_shared_axes():
    grad = torch.randn(2, 12, 5, 7)
    found = unfold(grad, (2, 3, 4), torch.empty(2, 1, 4, 5, 1))
    assert torch.allclose(found, grad.reshape(2, 3, 4, 5, 7).sum((1, 4), keepdim=True))


def test_strides_are_0_along_shared_batch_axes():
    tensor = torch.empty(2, 1, 5, 7)
    assert token_operand(tensor)[1:] == (35, 0, 7, 1)


def test_transposed_tokens_are_filled_up_to_a_multiple_of_every_tile():
    tokens = torch.randn(2, 5, 3, dtype=torch.bfloat16)
    found = transposed(tokens, torch.inf)
    assert found.dtype == torch.float32
    assert found.shape == (2, 3, padded_length(5)) == (2, 3, 128)
    assert torch.equal(found[..., :5], tokens.mT.float())
    assert found[..., 5:].isposinf().all()


def test_sizes_of_matrix_products_are_powers_of_two():
    assert [padded_size(size) for size in (1, 16, 17, 64, 100)] == [16, 16, 32, 64, 128]


def test_picked_tile_is_the_largest_that_gives_enough_programs():
    large, small = Tile(128, 64, 4), Tile(16, 64, 4)
    assert pick_tile([large, small], tokens=128 * 264, batch=1) == large
    assert pick_tile([large, small], tokens=128 * 264 - 1, batch=1) == small
    assert pick_tile([large, small], tokens=1, batch=1) == small


@pytest.mark.parametrize(
    ("mask", "band"),
    [
        (None, NO_BAND),
        (LENGTHS, NO_BAND),
        (Band(None, 0), (-MAX_OFFSET, 0, 1, 0)),
        (Band(-2, 3), (-2, 3, 1, 0)),
        (Not(Band(0, 0)), (-MAX_OFFSET, MAX_OFFSET, 0, 0)),
        (And(Band(None, 4), And(Not(Band(-1, 1)), LENGTHS)), (-MAX_OFFSET, 4, -1, 1)),
        (And(Band(None, 4), Band(-3, None)), (-3, 4, 1, 0)),
    ],
)
def test_mask_has_one_band_with_one_gap(mask, band):
    assert kernel_mask_of(mask).band == band


def test_masks_of_keys_are_separated_from_the_band():
    assert kernel_mask_of(And(LENGTHS, Band(None, 0))).key_masks == (LENGTHS,)


@pytest.mark.parametrize("mask", [Or(Band(None, 0), LENGTHS), And(Not(Band(0, 0)), Not(Band(3, 4)))])
def test_other_masks_are_not_supported(mask):
    assert kernel_mask_of(mask) is None


def test_key_bias_forbids_the_keys_that_any_mask_hides():
    device = torch.get_default_device()
    second = Dense(torch.tensor([[[False, True, True, True, True]]]))
    mask = kernel_mask_of(And(LENGTHS, second))
    assert mask.key_bias(5, device).tolist() == [[[-torch.inf, 0, 0, -torch.inf, -torch.inf]]]
    bias = torch.tensor([[[torch.nan, 1.0, 2.0, torch.inf, 3.0]]])
    assert mask.key_bias(5, device, bias).tolist() == [[[-torch.inf, 1, 2, -torch.inf, -torch.inf]]]
    assert kernel_mask_of(None).key_bias(5, device) is None
    assert kernel_mask_of(None).key_bias(5, device, bias) is bias
