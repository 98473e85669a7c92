"""Masks, biases, dropout and the gradients of rows, forward and backward."""

import math

import pytest
import torch
from tests import bounds
from tests.backends.triton.additive.judge import (
    Call,
    disagreements,
    drawn,
    judged,
    pooled,
    record_of,
    results,
    score_of,
)

import regard
from regard import Mask
from regard.backends.triton import additive
from regard.backends.triton.additive.softmax import choose_scale, row_deltas

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

OTHERS = ~Mask.window(0, 0, align="top_left")


def random_matrix(*shape: int):
    """Return a matrix of booleans whose first row is False."""
    matrix = torch.rand(shape) < 0.5
    matrix[..., 0, :] = False
    return matrix


# One mask of each kind that the kernels distinguish: keys, a band, a band with a gap, a matrix.
KINDS = {
    "keys": lambda: Mask.keys(torch.arange(18) % 3 > 0),
    "causal": lambda: Mask.causal(align="lower_right"),
    "window": lambda: Mask.window(2, 1, align="top_left"),
    "causal, keys, gap": lambda: Mask.causal(align="top_left") & Mask.keys(torch.arange(18) > 1) & OTHERS,
    "keep": lambda: Mask.keep(random_matrix(17, 18)),
}
OTHER_MASKS = {
    "top left": lambda: Mask.causal(align="top_left"),
    "the future": lambda: ~Mask.causal(align="top_left"),
    "gap": lambda: OTHERS,
    "drop": lambda: Mask.drop(~random_matrix(17, 18)),
    "documents": lambda: Mask.documents(torch.arange(17) // 6, torch.arange(18) // 7),
    "lengths per query": lambda: Mask.lengths_per_query(torch.arange(17)),
    "causal or some": lambda: (
        (Mask.causal(align="top_left") | Mask.keep(random_matrix(17, 18))) & Mask.keys(torch.arange(18) < 9)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_mask_forward_and_backward(kind):
    assert disagreements(drawn(17, 18, value_dim=1, mask=KINDS[kind]())) == []


@pytest.mark.parametrize("name", OTHER_MASKS)
def test_other_masks_forward(name):
    assert judged(drawn(17, 18, value_dim=1, mask=OTHER_MASKS[name]()), by=pooled).complaints() == []


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
def test_key_mask_may_be_one_number_for_all_keys(tolerance):
    mask = Mask.keep(torch.tensor([[[True]], [[False]]]))
    call = drawn(5, 17, batch=(2,), spread=0.4, tolerance=tolerance, mask=mask)
    assert results(call)["log_mass"].isneginf().all(-1).tolist() == [False, True]
    assert disagreements(call) == []


def test_masks_that_differ_by_batch_element():
    lengths, kept = Mask.lengths(torch.tensor([7, 0])), Mask.keep(random_matrix(2, 1, 5, 7))
    assert disagreements(drawn(5, 7, value_dim=1, batch=(2,), mask=lengths & Mask.causal(align="top_left"))) == []
    assert disagreements(drawn(5, 7, value_dim=1, batch=(2, 2), key_batch=(2, 1), mask=kept)) == []


@pytest.mark.parametrize(
    ("batch", "shape"),
    [((), (7,)), ((), (5, 7)), ((), (1, 1)), ((2,), (2, 5, 1)), ((2, 2), (2, 1, 1, 7)), ((2, 2), (2, 2, 5, 7))],
    ids=str,
)
def test_biases(batch, shape):
    assert disagreements(drawn(5, 7, value_dim=1, batch=batch, bias=3 * torch.randn(shape))) == []


def test_transposed_bias_of_several_blocks():
    assert disagreements(drawn(17, 18, value_dim=1, bias=torch.randn(18, 17).mT)) == []


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
def test_output_and_gradients_of_a_row_without_keys_are_0(tolerance):
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
def test_mask_that_forbids_everything(tolerance):
    call = drawn(3, 5, spread=0.4, tolerance=tolerance, mask=Mask.keys(torch.zeros(5, dtype=torch.bool)))
    found = results(call)
    assert found.pop("log_mass").isneginf().all()
    assert all((x == 0).all() for x in found.values())


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
def test_padding_may_hold_anything(tolerance):
    call = drawn(5, 16, value_dim=1, spread=0.4, tolerance=tolerance, mask=Mask.lengths(torch.tensor(6)))
    garbage = torch.full((10, 1), 1e30)
    key, value = (torch.cat([x[:6], garbage.expand(10, x.shape[-1])]) for x in (call.key, call.value))
    found, sound = results(call._replace(key=key, value=value)), results(call)
    for name, right in sound.items():
        assert torch.equal(found[name], right), name


def test_keys_hidden_by_a_matrix_may_hold_anything():
    call = drawn(5, 18, mask=Mask.keep((torch.arange(18) < 6).expand(5, 18)))
    key = torch.cat([call.key[:6], torch.full((12, 4), -1e30)])
    assert disagreements(call._replace(key=key)) == []


# --- Dropout -------------------------------------------------------------------------------------------------

KEYS, DROPOUT = 16, 0.25


def dropped(call: Call, *, seed: int = 3):
    """Return the output with dropout for a seed. For one-hot values these are the weights, dropped and scaled."""
    torch.manual_seed(seed)
    return dropped_next(call)


def dropped_next(call: Call):
    """Return the output with dropout for the next seed of the generator."""
    tolerance, score = call.tolerance, score_of(call)
    tokens = call.query, call.key, call.value, score
    return regard.attend(*tokens, call.mask, dropout=DROPOUT, backend="triton", tolerance=tolerance)


def one_hot(call: Call) -> Call:
    """Return the call with values for which the output equals the weights."""
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
    # All rows and columns are alike: five standard deviations of their sums.
    assert (kept.float().mean(0) - (1 - DROPOUT)).abs().max() < 5 * math.sqrt(DROPOUT * (1 - DROPOUT) / 32)
    assert (kept.float().mean(1) - (1 - DROPOUT)).abs().max() < 5 * math.sqrt(DROPOUT * (1 - DROPOUT) / KEYS)


def test_mean_over_many_dropout_masks_is_the_output_without_dropout():
    call = drawn(1, KEYS)
    many = call._replace(query=call.query.expand(160, -1))
    found, output = dropped(many).mean(0), record_of(call)[0][0]
    spread = (record_of(one_hot(call))[0][0].square() @ call.value.square() * DROPOUT / (1 - DROPOUT) / 160).sqrt()
    assert ((found - output).abs() < 4 * spread).all()


def test_dropout_depends_on_the_generator_of_torch_and_differs_between_batch_elements():
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
    found = torch.vmap(lambda query: dropped_next(call._replace(query=query)), randomness=randomness)(many)
    assert torch.equal(found[0] == 0, found[1] == 0) == (randomness == "same")


def test_dropout_does_not_depend_on_slabs(monkeypatch):
    call = one_hot(drawn(17, KEYS))
    whole = dropped(call)
    monkeypatch.setattr(additive, "SLAB_PAIRS", additive.PerForm(16 * KEYS, 16 * KEYS))
    found = dropped(call)
    assert torch.equal(found == 0, whole == 0)
    bounds.assert_same(found, whole)


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
def test_backward_pass_drops_the_same_weights(tolerance):
    """The gradients are those of (softmax(scores) * mask) @ value, with the dropout mask of the forward pass."""
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


def test_output_with_one_dropout_mask_is_linear_in_the_values():
    call = drawn(17, KEYS)
    other = torch.randn_like(call.value)
    added = dropped(call._replace(value=call.value + 2 * other))
    torch.testing.assert_close(added, dropped(call) + 2 * dropped(call._replace(value=other)), rtol=1e-5, atol=1e-5)


# --- Rows before the backward pass -----------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "value_dim"), [(1, 1), (7, 5), (64, 64), (131, 150)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_deltas_equal_those_of_torch(rows, value_dim, dtype):
    d_output, output = (torch.randn(rows, value_dim).to(dtype) for _ in range(2))
    log_mass, d_log_mass = (torch.randn(rows) for _ in range(2))
    log_mass[0] = -math.inf
    delta, norms, d_mass = (torch.full((rows,), math.nan) for _ in range(3))
    row_deltas[(-(-rows // 16),)](
        d_output, output, log_mass, d_log_mass, delta, norms, d_mass, rows, VALUE_DIM=value_dim, BV=64, BR=16
    )
    right = d_log_mass.masked_fill(log_mass == -math.inf, 0.0)
    torch.testing.assert_close(d_mass, right, rtol=0, atol=0)
    torch.testing.assert_close(delta, (d_output.float() * output.float()).sum(-1) - right)
    torch.testing.assert_close(norms, d_output.float().norm(dim=-1))


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-12, 1.0, 3e4, 1e15])
@pytest.mark.parametrize(("count", "dropout"), [(3, 0.0), (70, 0.75)])
def test_scale_is_the_power_of_two_that_fills_the_range_of_half_precision(size, count, dropout):
    norms, values, d_mass = (size * torch.rand(count) for _ in range(3))
    scale = torch.full((1,), math.nan)
    choose_scale[(1,)](norms, values, d_mass, scale, count, count, 1 - dropout, BLOCK=16)
    bound = float(2 * norms.double().max() * values.double().max() / (1 - dropout) + d_mass.double().max())
    assert math.frexp(scale.item())[0] == 0.5, "a power of two"
    if bound >= 2.0**-66:
        assert 2.0**13.99 <= scale.item() * bound <= 2.0**15.01
    else:
        assert scale.item() == 2.0**80
