"""How sequences are dealt out: split and join are inverses, and balanced shards have the same work."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.refuses import refuses

from regard import Mask
from regard.sharding import join, split
from regard.sharding.order import ORDERS, runs_of
from regard.sharding.shards import pieces


@given(st.integers(0, 40), st.integers(1, 7), st.sampled_from(ORDERS))
def test_join_is_the_inverse_of_split(tokens, ranks, order):
    whole = torch.randn(2, tokens, 3)
    shards = split(whole, ranks, order)
    assert len(shards) == ranks
    assert torch.equal(join(shards, order), whole)
    assert torch.equal(join(split(whole.mT, ranks, order, axis=-1), order, axis=-1), whole.mT)


@given(st.integers(0, 40), st.integers(1, 7), st.sampled_from(ORDERS))
def test_runs_say_where_the_tokens_of_a_shard_are(tokens, ranks, order):
    shards = split(torch.arange(tokens), ranks, order, axis=0)
    for shard, runs in zip(shards, runs_of([len(shard) for shard in shards], order, "keys"), strict=True):
        told = [
            (list(range(*here.indices(len(shard)))), list(range(run.start, run.stop))) for here, run in pieces(runs)
        ]
        assert [place for here, _ in told for place in here] == list(range(len(shard)))
        assert [place for _, run in told for place in run] == shard.tolist()


def test_shards_that_touch_are_one_run():
    assert runs_of([8], "balanced", "keys") == [(slice(0, 8),)]
    assert runs_of([4, 4], "balanced", "keys") == [(slice(0, 2), slice(6, 8)), (slice(2, 6),)]
    assert runs_of([0, 3], "contiguous", "keys") == [(), (slice(0, 3),)]


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


def test_gradients_pass_through_both():
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
def test_what_cannot_be_cut_is_refused(call, argument, word):
    with refuses(argument, word):
        call(torch.randn(8, 2))
