"""`split` and `join` are inverses, and balanced shards have the same work."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.refuses import refuses

from regard import Mask
from regard.sharding import join, split
from regard.sharding.layout import ORDERS, local_spans, spans_of


@given(st.integers(0, 40), st.integers(1, 7), st.sampled_from(ORDERS))
def test_join_is_the_inverse_of_split(tokens, ranks, order):
    whole = torch.randn(2, tokens, 3)
    shards = split(whole, ranks, order)
    assert len(shards) == ranks
    assert torch.equal(join(shards, order), whole)
    assert torch.equal(join(split(whole.mT, ranks, order, axis=-1), order, axis=-1), whole.mT)


@given(st.integers(0, 40), st.integers(1, 7), st.sampled_from(ORDERS))
def test_spans_give_the_positions_of_a_shard(tokens, ranks, order):
    shards = split(torch.arange(tokens), ranks, order, axis=0)
    for shard, spans in zip(shards, spans_of([len(shard) for shard in shards], order, "keys"), strict=True):
        found = [
            (list(range(*local.indices(len(shard)))), list(range(span.start, span.stop)))
            for local, span in local_spans(spans)
        ]
        assert [place for local, _ in found for place in local] == list(range(len(shard)))
        assert [place for _, span in found for place in span] == shard.tolist()


def test_touching_pieces_are_one_span():
    assert spans_of([8], "balanced", "keys") == [(slice(0, 8),)]
    assert spans_of([4, 4], "balanced", "keys") == [(slice(0, 2), slice(6, 8)), (slice(2, 6),)]
    assert spans_of([0, 3], "contiguous", "keys") == [(), (slice(0, 3),)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_balanced_shards_have_the_same_work_under_a_causal_mask(ranks):
    tokens = 8 * ranks
    pairs = Mask.causal().to_sdpa((), tokens, tokens)
    balanced, contiguous = (
        [int(pairs[shard].sum()) for shard in split(torch.arange(tokens), ranks, order, axis=0)]
        for order in ("balanced", "contiguous")
    )
    assert len(set(balanced)) == 1
    assert max(contiguous) > min(contiguous) * ranks / 2


def test_split_and_join_are_differentiable():
    whole = torch.randn(7, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(join(split(whole, 3, "balanced"), "balanced").square().sum(), whole)
    assert torch.equal(grad, 2 * whole)


@pytest.mark.parametrize(
    ("call", "argument", "word"),
    [
        (lambda x: split(x, 2, "striped"), "order", "'striped'"),
        (lambda x: split(x, 0), "ranks", "a whole number, at least 1"),
        (lambda x: split(x, True), "ranks", "True"),
        (lambda x: join([], "balanced"), "ranks", "0"),
        (lambda x: join([x[:1], x[1:]], "balanced"), "shards", "[1, 7] tokens on the ranks"),
    ],
)
def test_invalid_split_or_join_raises(call, argument, word):
    with refuses(argument, word):
        call(torch.randn(8, 2))
