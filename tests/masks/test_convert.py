"""Conversions against torch itself: nn.MultiheadAttention and scaled_dot_product_attention are the judges."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.refuses import refuses
from torch import nn

from regard.masks import Mask

B, H, Q, K, D = 2, 3, 5, 7, 12
CPU = torch.device("cpu")


def random(*sizes, seed=0):
    return torch.rand(sizes, generator=torch.Generator().manual_seed(seed)) < 0.4


def dense(mask, batch=(B, H)):
    return mask.to_sdpa(batch, Q, K)


def open_rows(drop):
    """Let every query keep its first key: torch gives NaN for rows without any."""
    drop[..., 0] = False
    return drop


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64).eval()


@pytest.fixture
def tokens():
    torch.manual_seed(1)
    return torch.randn(B, Q, D, dtype=torch.float64), torch.randn(B, K, D, dtype=torch.float64)


@pytest.mark.parametrize("with_matrix", ["none", "shared", "per head"])
@pytest.mark.parametrize("with_padding", [False, True])
def test_the_weights_of_multihead_vanish_exactly_where_the_mask_forbids(layer, tokens, with_matrix, with_padding):
    query, memory = tokens
    matrix = {"none": None, "shared": open_rows(random(Q, K)), "per head": open_rows(random(B * H, Q, K))}[with_matrix]
    padding = open_rows(random(B, K, seed=3)) if with_padding else None
    if matrix is None and padding is None:
        return
    mask = Mask.from_multihead(matrix, padding, heads=H)
    output, weights = layer(
        query, memory, memory, key_padding_mask=padding, attn_mask=matrix, average_attn_weights=False
    )
    assert torch.equal(weights > 0, dense(mask))
    back = mask.to_multihead(B, H, Q, K)
    assert back.shape == (B * H, Q, K)
    assert torch.allclose(layer(query, memory, memory, attn_mask=back)[0], output, atol=1e-12)


@pytest.mark.parametrize("sizes", [(Q, K), (1, K), (H, Q, K), (B, 1, Q, K), (B, H, Q, K)])
def test_sdpa_agrees_with_the_softmax_of_the_mask(sizes):
    keep = ~open_rows(random(*sizes))
    mask = Mask.from_sdpa(keep)
    query, key, value = (torch.randn(B, H, n, D, dtype=torch.float64) for n in (Q, K, K))
    scores = (query @ key.mT / math.sqrt(D)).masked_fill(~dense(mask), -torch.inf)
    expected = scores.softmax(-1) @ value
    assert torch.allclose(F.scaled_dot_product_attention(query, key, value, attn_mask=keep), expected)
    again = F.scaled_dot_product_attention(query, key, value, attn_mask=mask.to_sdpa((B, H), Q, K))
    assert torch.allclose(again, expected)


def test_causal_of_sdpa_is_top_left():
    query, key, value = (torch.randn(B, H, n, D, dtype=torch.float64) for n in (Q, K, K))
    mask = Mask.causal("top_left").to_sdpa((), Q, K)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.allclose(F.scaled_dot_product_attention(query, key, value, attn_mask=mask), expected)


def test_the_two_conventions_are_opposite_and_round_trips_are_exact():
    drop = random(B, H, Q, K)
    mask = Mask.from_multihead(drop.flatten(0, 1), heads=H)
    assert torch.equal(dense(mask), ~drop)
    assert torch.equal(mask.to_multihead(B, H, Q, K), drop.flatten(0, 1))
    assert torch.equal(dense(Mask.from_sdpa(dense(mask))), ~drop)


def test_padding_of_one_unbatched_sequence():
    padding = random(K)
    assert torch.equal(dense(Mask.from_multihead(key_padding_mask=padding), batch=()), (~padding).expand(Q, K))


def test_shared_axes_of_a_converted_mask_share_memory():
    out = Mask.lengths(torch.tensor([3, 4])).to_sdpa((B, H), Q, K)
    assert out.shape == (B, H, Q, K)
    assert out.untyped_storage().nbytes() == B * K


REFUSED = {
    "nothing": (
        lambda: Mask.from_multihead(),
        "Mask.from_multihead", "neither attn_mask nor key_padding_mask",
    ),
    "float attn_mask": (
        lambda: Mask.from_multihead(torch.zeros(Q, K)),
        "attn_mask", "float32 (5, 7) on cpu",
    ),
    "float padding": (
        lambda: Mask.from_multihead(key_padding_mask=torch.zeros(B, K)),
        "key_padding_mask", "float32 (2, 7) on cpu",
    ),
    "float sdpa": (
        lambda: Mask.from_sdpa(torch.zeros(Q, K)),
        "attn_mask", "float32 (5, 7) on cpu",
    ),
    "no heads": (
        lambda: Mask.from_multihead(random(B * H, Q, K)),
        "heads", "None, with attn_mask bool (6",
    ),
    "heads that are no number": (
        lambda: Mask.from_multihead(random(B * H, Q, K), heads=2.0),
        "heads", "a whole number, at least 1",
    ),
    "heads that do not divide": (
        lambda: Mask.from_multihead(random(B * H, Q, K), heads=4),
        "heads", "4, with attn_mask bool (6, 5, 7) on cpu",
    ),
    "four axes": (
        lambda: Mask.from_multihead(random(B, H, Q, K), heads=H),
        "attn_mask", "bool (2, 3, 5, 7) on cpu",
    ),
    "padding per query": (
        lambda: Mask.from_multihead(key_padding_mask=random(B, Q, K)),
        "key_padding_mask", "bool (2, 5, 7) on cpu",
    ),
    "one axis": (
        lambda: Mask.from_sdpa(random(K)),
        "attn_mask", "bool (7,) on cpu",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    ask, argument, word = REFUSED[case]
    with refuses(argument, word):
        ask()


@pytest.mark.parametrize("argument", ["batch", "heads", "queries", "keys"])
def test_to_multihead_names_the_size_that_is_invalid(argument):
    sizes = {"batch": B, "heads": H, "queries": Q, "keys": K, argument: -1}
    with refuses(argument, "got -1"):
        Mask.causal("top_left").to_multihead(**sizes)


@pytest.mark.parametrize(
    ("batch", "argument", "word"),
    [
        (2, "batch", "a sequence"),
        ("ab", "batch", "'ab'"),
        ((2.0,), "batch", "2.0"),
        ((2, -1), "batch", "-1"),
    ],
)
def test_what_are_no_sizes_of_a_batch_is_refused(batch, argument, word):
    for mask in (Mask.causal(), Mask.lengths(torch.tensor([1, 2]))):
        for call in (lambda mask=mask: mask.to_sdpa(batch, 4, 4), lambda mask=mask: mask.draw(4, 4, batch)):
            with refuses(argument, word):
                call()
