"""Masks, biases and dropout: which pairs count, with what weight, in both directions."""

import math

import pytest
import torch
from tests import bounds
from tests.backends.fused.additive.judge import Call, disagreements, drawn, judged, pooled, record_of, results, score_of

import regard
from regard import Mask
from regard.backends.fused.additive import tables

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ALONE = ~Mask.window(0, 0, align="top_left")


def some(*shape: int):
    """A matrix of booleans, the first row False."""
    matrix = torch.rand(shape) < 0.5
    matrix[..., 0, :] = False
    return matrix


# One of each kind that the kernels tell apart: keys, a band, a band with a gap, a matrix.
KINDS = {
    "keys": lambda: Mask.keys(torch.arange(18) % 3 > 0),
    "causal": lambda: Mask.causal(align="lower_right"),
    "window": lambda: Mask.window(2, 1, align="top_left"),
    "causal, keys, gap": lambda: Mask.causal(align="top_left") & Mask.keys(torch.arange(18) > 1) & ALONE,
    "keep": lambda: Mask.keep(some(17, 18)),
}
WORDS = {
    "top left": lambda: Mask.causal(align="top_left"),
    "the future": lambda: ~Mask.causal(align="top_left"),
    "gap": lambda: ALONE,
    "drop": lambda: Mask.drop(~some(17, 18)),
    "documents": lambda: Mask.documents(torch.arange(17) // 6, torch.arange(18) // 7),
    "lengths per query": lambda: Mask.lengths_per_query(torch.arange(17)),
    "causal or some": lambda: (
        (Mask.causal(align="top_left") | Mask.keep(some(17, 18))) & Mask.keys(torch.arange(18) < 9)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_mask_in_both_directions(kind):
    assert disagreements(drawn(17, 18, value_dim=1, mask=KINDS[kind]())) == []


@pytest.mark.parametrize("word", WORDS)
def test_every_word_of_masks(word):
    assert judged(drawn(17, 18, value_dim=1, mask=WORDS[word]()), by=pooled).complaints() == []


def test_masks_that_differ_by_element():
    lengths, kept = Mask.lengths(torch.tensor([7, 0])), Mask.keep(some(2, 1, 5, 7))
    assert disagreements(drawn(5, 7, value_dim=1, batch=(2,), mask=lengths & Mask.causal(align="top_left"))) == []
    assert disagreements(drawn(5, 7, value_dim=1, batch=(2, 2), key_batch=(2, 1), mask=kept)) == []


@pytest.mark.parametrize(
    ("batch", "shape"),
    [((), (7,)), ((), (5, 7)), ((), (1, 1)), ((2,), (2, 5, 1)), ((2, 2), (2, 1, 1, 7)), ((2, 2), (2, 2, 5, 7))],
    ids=str,
)
def test_biases(batch, shape):
    assert disagreements(drawn(5, 7, value_dim=1, batch=batch, bias=3 * torch.randn(shape))) == []


def test_a_bias_over_several_blocks_in_transposed_memory():
    assert disagreements(drawn(17, 18, value_dim=1, bias=torch.randn(18, 17).mT)) == []


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
def test_a_row_without_keys_is_0_and_so_are_its_gradients(tolerance):
    matrix = torch.ones(5, 7, dtype=torch.bool)
    matrix[3] = False
    call = drawn(5, 7, spread=0.4, tolerance=tolerance, mask=Mask.keep(matrix) & Mask.keys(torch.arange(7) < 6))
    found = results(call)
    assert (found["output"][3] == 0).all()
    assert found["log_mass"].isneginf().nonzero().flatten().tolist() == [3]
    assert (found["query"][3] == 0).all()
    assert (found["key"][6] == 0).all()
    assert (found["value"][6] == 0).all()
    assert disagreements(call) == []


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
def test_nobody_sees_anything(tolerance):
    call = drawn(3, 5, spread=0.4, tolerance=tolerance, mask=Mask.keys(torch.zeros(5, dtype=torch.bool)))
    found = results(call)
    assert found.pop("log_mass").isneginf().all()
    assert all((x == 0).all() for x in found.values())


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
def test_padding_may_hold_any_garbage(tolerance):
    call = drawn(5, 16, value_dim=1, spread=0.4, tolerance=tolerance, mask=Mask.lengths(torch.tensor(6)))
    garbage = torch.full((10, 1), 1e30)
    key, value = (torch.cat([x[:6], garbage.expand(10, x.shape[-1])]) for x in (call.key, call.value))
    found, sound = results(call._replace(key=key, value=value)), results(call)
    for name, right in sound.items():
        assert torch.equal(found[name], right), name


def test_keys_hidden_one_by_one_may_hold_garbage_that_is_no_value():
    call = drawn(5, 18, mask=Mask.keep((torch.arange(18) < 6).expand(5, 18)))
    key = torch.cat([call.key[:6], torch.full((12, 4), -1e30)])
    assert disagreements(call._replace(key=key)) == []


# Dropout.

KEYS, DROPOUT = 16, 0.25


def dropped(call: Call, *, seed: int = 3):
    """The weights that are left, scaled (*batch, queries, keys): the output for values that are one-hot."""
    torch.manual_seed(seed)
    return dropped_of(call)


def dropped_of(call: Call):
    """The same with the seed that comes next."""
    tolerance, score = call.tolerance, score_of(call)
    tokens = call.query, call.key, call.value, score
    return regard.attend(*tokens, call.mask, dropout=DROPOUT, backend="triton", tolerance=tolerance)


def one_hot(call: Call) -> Call:
    """Values that make an output its weights."""
    return call._replace(value=torch.eye(call.key.shape[-2]).expand(*call.key.shape[:-1], -1))


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
def test_weights_are_dropped_or_scaled(tolerance):
    call = one_hot(drawn(32, KEYS, spread=0.4, tolerance=tolerance))
    weights, found = record_of(call)[0], dropped(call)
    kept = found != 0
    torch.testing.assert_close(
        found[kept], weights[kept] / (1 - DROPOUT), rtol=2e-5 if tolerance is None else 1e-2, atol=0
    )
    # 512 draws: three standard deviations.
    assert abs(kept.float().mean().item() - (1 - DROPOUT)) < 3 * math.sqrt(DROPOUT * (1 - DROPOUT) / 512)
    # No row or column is favoured: five standard deviations of their sums.
    assert (kept.float().mean(0) - (1 - DROPOUT)).abs().max() < 5 * math.sqrt(DROPOUT * (1 - DROPOUT) / 32)
    assert (kept.float().mean(1) - (1 - DROPOUT)).abs().max() < 5 * math.sqrt(DROPOUT * (1 - DROPOUT) / KEYS)


def test_the_mean_over_many_masks_is_the_output_without():
    call = drawn(1, KEYS)
    many = call._replace(query=call.query.expand(160, -1))
    found, output = dropped(many).mean(0), record_of(call)[0][0]
    spread = (record_of(one_hot(call))[0][0].square() @ call.value.square() * DROPOUT / (1 - DROPOUT) / 160).sqrt()
    assert ((found - output).abs() < 4 * spread).all()


def test_dropout_follows_the_generator_of_torch_and_no_two_elements_are_alike():
    call = one_hot(drawn(5, KEYS, batch=(2, 2)))
    one, again, other = dropped(call), dropped(call), dropped(call, seed=4)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    masks = (one != 0).flatten(0, 1)
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 4


def test_dropout_is_the_same_where_only_the_backward_pass_is_mapped():
    call = drawn(3, 5, batch=(2,), value_dim=2)
    jacobian = torch.func.jacrev(lambda value: dropped(call._replace(value=value)))(call.value)
    pooled = torch.einsum("abcdef,def->abc", jacobian, call.value)  # pooling is linear in its values
    torch.testing.assert_close(pooled, dropped(call))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_mapped_examples_share_their_dropout_if_asked_to(randomness):
    call = one_hot(drawn(5, KEYS, batch=(2,)))
    many = call.query.expand(3, *call.query.shape)
    found = torch.vmap(lambda query: dropped_of(call._replace(query=query)), randomness=randomness)(many)
    assert torch.equal(found[0] == 0, found[1] == 0) == (randomness == "same")


def test_the_mask_of_dropout_does_not_depend_on_slabs(monkeypatch):
    call = one_hot(drawn(17, KEYS))
    whole = dropped(call)
    monkeypatch.setattr(tables, "SLAB", (tables.BLOCK * KEYS,) * 2)
    found = dropped(call)
    assert torch.equal(found == 0, whole == 0)
    bounds.assert_same(found, whole)


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
def test_the_backward_pass_drops_the_same_weights(tolerance):
    """Its gradients are those of (softmax(scores) * mask) @ value, with the mask that the forward pass shows."""
    call = drawn(12 if tolerance else 18, KEYS, spread=0.4, tolerance=tolerance, mask=Mask.causal(align="top_left"))
    keep = (dropped(one_hot(call)) != 0).double() / (1 - DROPOUT)
    leaves = {name: leaf.requires_grad_() for name, leaf in call.leaves.items()}
    found = dropped(call._replace(**leaves))
    given = torch.randn(found.shape)
    grads = torch.autograd.grad(found, list(leaves.values()), given)

    exact = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    scores = torch.tanh(exact["query"].unsqueeze(-2) + exact["key"]) @ exact["weight"]
    forbidden = torch.ones(scores.shape, dtype=torch.bool).triu(1)
    wanted = (scores.masked_fill(forbidden, -math.inf).softmax(-1) * keep) @ exact["value"]
    right = torch.autograd.grad(wanted, list(exact.values()), given.double())
    for name, one, other in zip(("output", *leaves), (found, *grads), (wanted, *right), strict=True):
        allowed = (1e-5 if tolerance is None else 4 * tolerance) * other.abs().max().item()
        bounds.assert_close(one, other, allowed, name)


def test_with_one_mask_the_output_is_linear_in_the_values():
    call = drawn(17, KEYS)
    other = torch.randn_like(call.value)
    added = dropped(call._replace(value=call.value + 2 * other))
    torch.testing.assert_close(added, dropped(call) + 2 * dropped(call._replace(value=other)), rtol=1e-5, atol=1e-5)
