"""Bound masks against brute force: tiles, coverage, flattening, padding, and no memory for tiles that are skipped."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.masks import Mask, bound

CPU = torch.device("cpu")
BATCH, QUERIES, KEYS = (2, 3), 5, 7  # primes: no two axes can be mistaken for one another
RANK = len(BATCH) + 2


def cells(sizes=(*BATCH, QUERIES, KEYS)):
    return itertools.product(*map(range, sizes))


def at(tensor, *index):
    """An entry of a tensor whose axes of size 1 are shared."""
    return tensor[tuple(0 if size == 1 else i for i, size in zip(index, tensor.shape, strict=True))].item()


def allows(node, b, h, i, j):
    """The meaning of a node at one cell, in plain Python."""
    match node:
        case bound.Band():
            return (node.low is None or node.low <= j - i) and (node.high is None or j - i <= node.high)
        case bound.Dense():
            return at(node.allowed, b, h, i, j)
        case bound.Lengths():
            return j < at(node.lengths, b, h, i, 0)
        case bound.SameDocument():
            return at(node.query_ids, b, h, i, 0) == at(node.key_ids, b, h, 0, j)
        case bound.And():
            return allows(node.left, b, h, i, j) and allows(node.right, b, h, i, j)
        case bound.Or():
            return allows(node.left, b, h, i, j) or allows(node.right, b, h, i, j)
        case bound.Not():
            return not allows(node.inner, b, h, i, j)


def brute(node):
    return torch.tensor([allows(node, *cell) for cell in cells()]).reshape(*BATCH, QUERIES, KEYS)


def whole(node):
    tile = node.tile(slice(0, QUERIES), slice(0, KEYS), CPU)
    return tile.expand(*BATCH, QUERIES, KEYS)


def numbers(draw, low, high, *sizes):
    """A random integer tensor in which each axis may be shared; drawn by seed, because lists are slow."""
    sizes = [size if draw(st.booleans()) else 1 for size in sizes]
    return torch.randint(low, high + 1, sizes, generator=torch.Generator().manual_seed(draw(st.integers(0, 999))))


@st.composite
def leaves(draw):
    kind = draw(st.sampled_from(["band", "dense", "lengths", "same"]))
    if kind == "band":
        side = st.none() | st.integers(-6, 8)
        return bound.Band(draw(side), draw(side))
    if kind == "dense":
        return bound.Dense(numbers(draw, 0, 1, *BATCH, QUERIES, KEYS).bool())
    if kind == "lengths":
        return bound.Lengths(numbers(draw, 0, KEYS + 1, *BATCH, QUERIES, 1))
    return bound.SameDocument(numbers(draw, 0, 2, *BATCH, QUERIES, 1), numbers(draw, 0, 2, *BATCH, 1, KEYS))


trees = st.recursive(
    leaves(),
    lambda node: st.builds(bound.And, node, node) | st.builds(bound.Or, node, node) | st.builds(bound.Not, node),
    max_leaves=5,
)
spans = lambda size: st.tuples(st.integers(0, size - 1), st.integers(1, size)).filter(lambda s: s[0] < s[1])  # noqa: E731


@settings(max_examples=80, deadline=None)
@given(trees, spans(QUERIES), spans(KEYS), st.data())
def test_tiles_of_any_tree_agree_with_brute_force(node, rows, cols, data):
    truth = brute(node)
    assert torch.equal(whole(node), truth)
    part = truth[..., slice(*rows), slice(*cols)]
    tile = node.tile(slice(*rows), slice(*cols), CPU)
    assert tile.dtype == torch.bool
    assert torch.equal(tile.expand(part.shape), part)
    chosen_rows = torch.tensor(data.draw(st.lists(st.integers(0, QUERIES - 1), min_size=1, max_size=4)))
    chosen_cols = torch.tensor(data.draw(st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=4)))
    picked = truth[..., chosen_rows, :][..., chosen_cols]
    assert torch.equal(node.tile(chosen_rows, chosen_cols, CPU).expand(picked.shape), picked)
    mixed = truth[..., chosen_rows, slice(*cols)]
    assert torch.equal(node.tile(chosen_rows, slice(*cols), CPU).expand(mixed.shape), mixed)


@settings(max_examples=80, deadline=None)
@given(trees, spans(QUERIES), spans(KEYS))
def test_coverage_agrees_with_brute_force(node, rows, cols):
    part = brute(node)[..., slice(*rows), slice(*cols)]
    claim = node.coverage(slice(*rows), slice(*cols))
    assert claim is None or bool((part == claim).all())


@settings(max_examples=80, deadline=None)
@given(leaves(), spans(QUERIES), spans(KEYS))
def test_coverage_of_bands_and_matrices_is_exact(node, rows, cols):
    if isinstance(node, bound.Band | bound.Dense):
        part = brute(node)[..., slice(*rows), slice(*cols)]
        expected = True if part.all() else False if not part.any() else None
        assert node.coverage(slice(*rows), slice(*cols)) is expected


@settings(max_examples=80, deadline=None)
@given(trees)
def test_unflatten_restores_a_flattened_mask(node):
    text, tensors, numbers = bound.flatten(node)
    again = bound.unflatten(text, tensors, numbers)
    assert bound.flatten(again)[::2] == (text, numbers)
    assert all(a is b for a, b in zip(tensors, node.tensors(), strict=True))
    assert all(a is b for a, b in zip(again.tensors(), tensors, strict=True))
    assert all(tensor.ndim == RANK for tensor in node.tensors())
    assert torch.equal(whole(again), whole(node))
    assert type(again) is type(node)
    assert again.varies_by_query == node.varies_by_query


@settings(max_examples=80, deadline=None)
@given(trees)
def test_negation_reaches_the_leaves_and_changes_no_cell(node):
    assert torch.equal(whole(bound.negate(node)), ~whole(node))
    pair = bound.negate(bound.And(node, bound.Band(None, 0)))
    assert isinstance(pair, bound.Or)
    assert (pair.right.low, pair.right.high) == (1, None)


@settings(max_examples=80, deadline=None)
@given(trees, trees)
def test_de_morgan(left, right):
    both, either = whole(bound.And(left, right)), whole(bound.Or(left, right))
    assert torch.equal(whole(bound.Not(bound.And(left, right))), whole(bound.Not(left)) | whole(bound.Not(right)))
    assert torch.equal(whole(bound.Not(bound.Or(left, right))), whole(bound.Not(left)) & whole(bound.Not(right)))
    assert torch.equal(whole(bound.conjunction(left, right)), both)
    assert bool((both <= either).all())


@settings(max_examples=80, deadline=None)
@given(trees)
def test_padding_is_hidden_from_every_query_and_complete_for_key_conditions(node):
    truth, padding = brute(node), node.padding(KEYS, CPU)
    seen = truth.any(-2)[..., None]
    if padding is not None:
        assert bool((seen <= padding.real.expand(*BATCH, KEYS, 1)).all())
    if not node.varies_by_query:
        assert torch.equal(truth, truth[..., :1, :].expand_as(truth))
        assert torch.equal(padding.real.expand(*BATCH, KEYS, 1), seen)


def test_padding_is_found_inside_other_conditions():
    padding = Mask.lengths(torch.tensor([4, 7]))
    future = Mask.drop(torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(1))
    sizes = {"batch": BATCH, "queries": QUERIES, "keys": KEYS, "device": CPU}
    expected = torch.arange(KEYS) < torch.tensor([4, 7])[:, None, None]
    for mask in (padding & future, future & padding, ~(~padding | ~future)):
        real = mask.place(**sizes).padding(KEYS, CPU).real
        assert real.shape == (2, 1, KEYS, 1)
        assert torch.equal(real[..., 0], expected)
    assert future.place(**sizes).padding(KEYS, CPU) is None
    assert (padding | future).place(**sizes).padding(KEYS, CPU) is None


def test_only_the_unshifted_band_is_causal():
    assert bound.Band(None, 0).is_causal
    others = [
        bound.Band(None, 1),
        bound.Band(0, 0),
        bound.Band(None, None),
        bound.Not(bound.Band(None, 0)),
    ]
    assert not any(node.is_causal for node in others)


def test_two_bands_are_one_band():
    mask = Mask.causal() & Mask.window(3, None)
    node = mask.place(batch=(), queries=7, keys=7, device=CPU)
    assert isinstance(node, bound.Band)
    assert (node.low, node.high) == (-3, 0)


FULL, CAUSAL = bound.Band(None, QUERIES + KEYS), bound.Band(None, 0)


@settings(max_examples=80, deadline=None)
@given(trees)
def test_without_full_bands_changes_no_cell(node):
    for mask in (node, bound.And(FULL, node), bound.And(bound.And(node, FULL), bound.And(FULL, node))):
        found = bound.without_full_bands(mask, QUERIES, KEYS)
        assert torch.equal(brute(mask), torch.ones_like(brute(mask)) if found is None else brute(found))


def test_full_bands_are_removed_at_any_depth():
    lengths = bound.Lengths(torch.full((1, 1, 1, 1), 3))
    dense = bound.Dense(torch.ones(1, 1, QUERIES, KEYS, dtype=torch.bool))
    for mask in (bound.And(bound.And(FULL, lengths), dense), bound.And(lengths, bound.And(dense, FULL))):
        found = bound.without_full_bands(mask, QUERIES, KEYS)
        assert [found.left, found.right] == [lengths, dense]
    assert bound.without_full_bands(bound.And(bound.And(FULL, FULL), lengths), QUERIES, KEYS) is lengths
    assert bound.without_full_bands(bound.And(FULL, bound.And(FULL, FULL)), QUERIES, KEYS) is None


def test_a_mask_without_full_bands_stays_the_same_object():
    lengths = bound.Lengths(torch.full((1, 1, 1, 1), 3))
    for mask in (CAUSAL, lengths, bound.And(CAUSAL, lengths), bound.And(bound.And(CAUSAL, lengths), lengths)):
        assert bound.without_full_bands(mask, QUERIES, KEYS) is mask


def test_key_condition_splits_a_mask_into_padding_and_causal():
    padding = bound.Lengths(torch.full((1, 1, 1, 1), 3))
    per_query = bound.Lengths(torch.full((1, 1, QUERIES, 1), 3))
    assert bound.key_condition(padding) == (padding, False)
    assert bound.key_condition(bound.And(padding, CAUSAL)) == (padding, True)
    assert bound.key_condition(bound.And(CAUSAL, padding)) == (padding, True)
    assert bound.key_condition(bound.And(CAUSAL, per_query)) == (None, True)
    for mask in (CAUSAL, per_query, bound.And(padding, padding), bound.Or(CAUSAL, padding), bound.Not(padding)):
        assert bound.key_condition(mask) == (None, False)


def test_documents_are_skipped_where_each_batch_element_is_elsewhere():
    ids = torch.tensor([[0, 0, 0, 1, 1, 1], [5, 5, 5, 5, 7, 7]])
    node = Mask.documents(ids, ids).place(batch=(2,), queries=6, keys=6, device=CPU)
    assert node.coverage(slice(0, 3), slice(4, 6)) is False
    assert node.coverage(slice(0, 3), slice(3, 6)) is None
    assert node.coverage(slice(0, 3), slice(0, 3)) is True


def test_lengths_skip_and_fill_around_the_edges():
    node = Mask.lengths(torch.tensor([64, 65])).place(batch=(2,), queries=3, keys=200, device=CPU)
    rows = slice(0, 3)
    assert [node.coverage(rows, slice(start, start + 64)) for start in (0, 1, 64, 65, 128)] == [
        True,
        None,
        None,
        False,
        False,
    ]


def test_a_causal_mask_of_100k_costs_nothing_until_a_tile_is_asked_for(monkeypatch):
    size, step = 100_000, 64
    node = Mask.causal().place(batch=(1, 8), queries=size, keys=size, device=CPU)
    made = []
    arange = torch.arange
    monkeypatch.setattr(torch, "arange", lambda *a, **k: made.append(arange(*a, **k)) or made[-1])
    row = slice(50_048, 50_048 + step)
    claims = [node.coverage(row, slice(start, min(start + step, size))) for start in range(0, size, step)]
    assert not made, "coverage must be arithmetic alone"
    assert claims == [True] * 782 + [None] + [False] * 780
    tile = node.tile(row, slice(50_048, 50_048 + step), CPU)
    assert torch.equal(tile, torch.ones(step, step).tril().bool())
    assert sum(tensor.numel() for tensor in made) == 2 * step
    assert tile.untyped_storage().nbytes() == step * step


def test_shared_axes_are_never_expanded():
    lengths = Mask.lengths(torch.tensor([3, 6]))
    tile = lengths.place(batch=BATCH, queries=QUERIES, keys=KEYS, device=CPU).tile(slice(1, 4), slice(2, 7), CPU)
    assert tile.shape == (2, 1, 1, 5)


@pytest.mark.parametrize("node", [
    bound.Dense(torch.ones(1, 1, 1, 1, dtype=torch.bool, device="meta")),
    bound.Lengths(torch.ones(1, 1, 1, 1, dtype=torch.int64, device="meta")),
    bound.SameDocument(*[torch.ones(1, 1, 1, 1, dtype=torch.int64, device="meta")] * 2),
])  # fmt: skip
def test_coverage_never_waits_for_another_device(node):
    assert node.coverage(slice(0, 1), slice(0, 1)) is None


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
def test_coverage_of_an_empty_batch_is_unknown(batch):
    ids = torch.zeros(0, 5, dtype=torch.int64).expand(*batch, 5)
    for mask in (Mask.lengths(ids[..., 0]), Mask.documents(ids, ids), Mask.keys(ids > 0)):
        node = mask.place(batch=batch, queries=5, keys=5, device=CPU)
        assert node.tile(slice(0, 5), slice(0, 5), CPU).expand(*batch, 5, 5).numel() == 0
        assert node.coverage(slice(0, 5), slice(0, 5)) is None


@settings(max_examples=80, deadline=None)
@given(trees, spans(QUERIES), spans(KEYS))
def test_a_restricted_mask_has_the_tile_of_the_whole(node, rows, cols):
    part = brute(node)[..., slice(*rows), slice(*cols)]
    tile = node.restrict(slice(*rows), slice(*cols)).tile(slice(0, part.shape[-2]), slice(0, part.shape[-1]), CPU)
    assert torch.equal(tile.expand(part.shape), part)


def padding_of(lengths, keys=KEYS):
    mask = Mask.lengths(torch.tensor(lengths))
    return mask.place(batch=(len(lengths),), queries=QUERIES, keys=keys, device=CPU).padding(keys, CPU)


def test_padding_bias_is_computed_once_per_dtype_and_forbids_padding():
    padding = padding_of([3, 0])
    bias = padding.bias(torch.float32)
    assert padding.bias(torch.float32) is bias
    assert torch.equal(bias, torch.zeros(2, 1, KEYS).masked_fill_(~padding.real.mT, -torch.inf))
    assert padding.bias(torch.bfloat16).dtype == torch.bfloat16
    assert all(stride % bound.BIAS_ALIGNMENT == 0 for stride in bias.stride()[:-1]), "rows must be aligned"


def test_examples_of_padding_only_are_empty():
    padding = padding_of([3, 0])
    assert torch.equal(padding.empty_examples(), torch.tensor([False, True])[:, None, None])
    assert padding.empty_examples() is padding.empty_examples()


def test_zeroed_padding_is_zero_even_if_it_was_infinite():
    tokens = torch.randn(2, KEYS, 3)
    tokens[0, 3:] = torch.inf
    found = padding_of([3, KEYS]).zero(tokens)
    assert not found[0, 3:].any()
    assert torch.equal(found[0, :3], tokens[0, :3])
    assert torch.equal(found[1], tokens[1])


def test_shared_tokens_are_zeroed_where_they_are_padding_of_every_example():
    tokens = torch.ones(1, KEYS, 2)
    found = padding_of([2, 5]).zero(tokens)
    assert found.shape == tokens.shape
    assert torch.equal(found[0, :, 0], (torch.arange(KEYS) < 5).float())


def test_padding_of_a_bound_mask_is_computed_once():
    for mask in (Mask.lengths(torch.tensor([3, 5])), Mask.keys(torch.rand(2, KEYS) > 0.5)):
        node = mask.place(batch=(2,), queries=QUERIES, keys=KEYS, device=CPU)
        assert node.padding(KEYS, CPU) is node.padding(KEYS, CPU)
