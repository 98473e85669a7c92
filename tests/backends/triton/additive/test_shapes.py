"""Any sizes, batch axes, strides and dtypes agree with the reference."""

import pytest
import torch
from tests import bounds
from tests.backends.triton.additive.judge import disagreements, drawn, judged, plan_of, problem_of, score_of

import regard
from regard import Mask
from regard.backends.triton import additive
from regard.backends.triton.additive import exact, fold_problem, slabs

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize(("queries", "keys"), [(15, 33), (16, 16), (17, 15), (33, 17), (1, 1)])
def test_sizes_around_the_edges_of_blocks(queries, keys):
    mask = Mask.causal(align="lower_right")
    assert disagreements(drawn(queries, keys, mask=mask, bias=torch.randn(1, keys))) == []


@pytest.mark.parametrize("value_dim", [1, 5, 130])
def test_values_of_any_width(value_dim):
    assert disagreements(drawn(17, 18, value_dim=value_dim)) == []


@pytest.mark.parametrize("hidden", [1, 6, 7])
def test_hidden_units_need_not_be_a_multiple_of_4(hidden):
    assert disagreements(drawn(6, 7, hidden=hidden)) == []


def test_hidden_units_are_differentiated_in_chunks(monkeypatch):
    """In chunks of 8 if they divide the units, otherwise of 4."""
    monkeypatch.setattr(exact, "GRADIENT_UNITS", 8)
    assert disagreements(drawn(5, 7, hidden=16)) == []
    assert disagreements(drawn(5, 7, hidden=12)) == []


@pytest.mark.usefixtures("small_slabs")
def test_several_slabs_give_one_result():
    call = drawn(20, 40, batch=(2,), mask=Mask.lengths(torch.tensor([37, 9])), bias=torch.randn(20, 40))
    found = slabs(fold_problem(problem_of(call), rank=0))
    assert [(slab.first_batch, slab.first_row, slab.rows) for slab in found] == [
        (element, row, 16) for element in range(2) for row in (0, 16)
    ]
    assert disagreements(call) == []


def test_slab_holds_several_elements_with_the_same_outer_index(monkeypatch):
    monkeypatch.setattr(additive, "SLAB_PAIRS", additive.PerForm(2 * 16 * 16, 2 * 16 * 16))
    call = drawn(5, 7, value_dim=1, batch=(2, 3), key_batch=(2, 1))
    found = slabs(fold_problem(problem_of(call), rank=0))
    assert [(slab.first_batch, slab.num_batch, slab.is_last) for slab in found] == [
        (0, 2, True), (2, 1, True), (3, 2, True), (5, 1, True),
    ]  # fmt: skip
    assert disagreements(call) == []


SHARED = {
    "keys of one batch": {"batch": (2, 2), "key_batch": (1, 2)},
    "weights per head": {"batch": (2, 2), "heads": (2,)},
    "keys without heads, weights per head": {"batch": (2, 3), "key_batch": (2, 1), "heads": (3,), "value_dim": 1},
    "three axes": {"batch": (2, 1, 2), "key_batch": (2, 1, 1)},
    "three groups of axes": {"batch": (2, 3, 2), "key_batch": (2, 1, 2)},
}


@pytest.mark.parametrize("shared", SHARED)
def test_shared_axes(shared):
    assert disagreements(drawn(5, 7, **SHARED[shared])) == []


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
@pytest.mark.parametrize("shape", [(2, 1, 2, 1, 7), (1, 3, 1, 5, 7), (2, 1, 1, 5, 1)], ids=str)
def test_bias_gradient_is_summed_over_axes_shared_in_three_groups(shape, tolerance):
    call = drawn(5, 7, batch=(2, 3, 2), key_batch=(2, 1, 2), bias=torch.randn(shape), spread=0.4, tolerance=tolerance)
    assert disagreements(call) == []


def test_shared_values_and_queries():
    call = drawn(5, 7, batch=(2, 2))
    assert disagreements(call._replace(query=call.query[:, :1], value=call.value[:1])) == []


def test_shared_keys_are_not_copied():
    call = drawn(5, 7, batch=(2, 3), key_batch=(2, 1))
    folded = fold_problem(problem_of(call), rank=0)
    assert folded.key.shape == (2, 1, 7, 4)
    assert folded.key.data_ptr() == call.key.data_ptr()
    assert (folded.outer, folded.inner) == (2, 3)


def test_transposed_heads_and_slices_are_read_by_their_strides():
    call = drawn(6, 7, batch=(2, 2))
    query, key, value = (
        torch.randn(2, x.shape[-2], 2, 2 * x.shape[-1]).transpose(1, 2)[..., ::2]
        for x in (call.query, call.key, call.value)
    )
    assert not query.is_contiguous()
    result = judged(call._replace(query=query, key=key, value=value))
    assert result.complaints() == []
    dense = judged(call._replace(query=query.contiguous(), key=key.contiguous(), value=value.contiguous()))
    for name, found in result.found.items():
        bounds.assert_same(found, dense.found[name], what=name)


def test_transposed_token_axis():
    call = drawn(17, 18)
    query, key, value = (x.mT.contiguous().mT for x in (call.query, call.key, call.value))
    assert disagreements(call._replace(query=query, key=key, value=value)) == []


def test_float16_is_exact_and_results_have_their_dtypes():
    call = drawn(17, 18, bias=torch.randn(17, 18)).to(torch.float16)
    assert plan_of(call).rank == 0
    result = judged(call, torch.float16)
    assert result.complaints() == []
    assert [result.found[x].dtype for x in ("output", "log_mass", "key", "bias")] == [
        torch.float16, torch.float32, torch.float16, torch.float32,
    ]  # fmt: skip


def test_bfloat16_is_lifted_within_its_own_rounding():
    call = drawn(6, 17, spread=0.5)
    assert plan_of(call.to(torch.bfloat16)).rank > 0
    assert disagreements(call, torch.bfloat16) == []


def test_autocast_casts_the_tokens():
    call = drawn(5, 7)
    device = call.query.device.type
    with torch.autocast(device, dtype=torch.float16):
        score = regard.scores.Additive.of_projected(4).eval()
        found = regard.inspect(call.query, call.key, call.value, score, backend="triton")
    assert (found.output.dtype, found.log_mass.dtype) == (torch.float16, torch.float32)
    tokens = (x.half() for x in (call.query, call.key, call.value))
    wanted = regard.inspect(*tokens, score, backend="triton")
    assert torch.equal(found.output, wanted.output)


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
def test_backward_pass_under_autocast_has_the_same_gradients(tolerance):
    call = drawn(5, 7, spread=0.4, tolerance=tolerance)
    score, query = score_of(call), call.query.requires_grad_()

    def pooled():
        return regard.attend(query, call.key, call.value, score, backend="triton", tolerance=tolerance).sum()

    (wanted,) = torch.autograd.grad(pooled(), query)
    output = pooled()
    with torch.autocast(query.device.type, dtype=torch.bfloat16):
        (found,) = torch.autograd.grad(output, query)
    assert torch.equal(found, wanted)
