"""Any sizes, batch axes, strides and dtypes: what the kernels are given is what the caller meant."""

import pytest
import torch
from tests import bounds
from tests.backends.fused.additive.judge import disagreements, drawn, judged, plan_of

import regard
from regard import Mask
from regard.backends.fused.additive import tables
from regard.backends.fused.additive.call import Statics, call_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

PLAIN = Statics(False, False, "", [], 0.0, 0, 0.0, 0.0)


@pytest.mark.parametrize(("queries", "keys"), [(15, 33), (16, 16), (17, 15), (33, 17), (1, 1)])
def test_around_the_edges_of_blocks(queries, keys):
    mask = Mask.causal(align="lower_right")
    assert disagreements(drawn(queries, keys, mask=mask, bias=torch.randn(1, keys))) == []


@pytest.mark.parametrize("value_dim", [1, 5, 130])
def test_values_of_any_width(value_dim):
    assert disagreements(drawn(17, 18, value_dim=value_dim)) == []


@pytest.mark.parametrize("hidden", [1, 6, 7])
def test_hidden_units_that_are_no_multiple_of_four(hidden):
    assert disagreements(drawn(6, 7, hidden=hidden)) == []


def test_more_units_than_a_program_keeps(monkeypatch):
    """In chunks of 8 where they divide the units, otherwise of 4."""
    monkeypatch.setattr(tables, "PULL_UNITS", 8)
    assert disagreements(drawn(5, 7, hidden=16)) == []
    assert disagreements(drawn(5, 7, hidden=12)) == []


@pytest.mark.usefixtures("small_slabs")
def test_several_slabs_give_one_result():
    call = drawn(20, 40, batch=(2,), mask=Mask.lengths(torch.tensor([37, 9])), bias=torch.randn(20, 40))
    made = call_of([call.query, call.key, call.weight[None, None], call.value], PLAIN)
    assert [(slab.first_batch, slab.first_row, slab.rows) for slab in made.slabs()] == [
        (element, row, 16) for element in range(2) for row in (0, 16)
    ]
    assert disagreements(call) == []


def test_a_slab_holds_several_elements_of_one_row_of_the_batch(monkeypatch):
    monkeypatch.setattr(tables, "SLAB", (2 * 16 * 16,) * 2)
    call = drawn(5, 7, value_dim=1, batch=(2, 3), key_batch=(2, 1))
    made = call_of([call.query, call.key, call.weight[None, None, None], call.value], PLAIN)
    assert [(slab.first_batch, slab.elements, slab.is_last) for slab in made.slabs()] == [
        (0, 2, True), (2, 1, True), (3, 2, True), (5, 1, True),
    ]  # fmt: skip
    assert disagreements(call) == []


SHARED = {
    "keys of one batch": {"batch": (2, 2), "key_batch": (1, 2)},
    "weights per head": {"batch": (2, 2), "heads": (2,)},
    "keys without heads, weights per head": {"batch": (2, 3), "key_batch": (2, 1), "heads": (3,), "value_dim": 1},
    "three axes": {"batch": (2, 1, 2), "key_batch": (2, 1, 1)},
}


@pytest.mark.parametrize("shared", SHARED)
def test_axes_that_are_shared(shared):
    assert disagreements(drawn(5, 7, **SHARED[shared])) == []


def test_values_and_queries_that_are_shared():
    call = drawn(5, 7, batch=(2, 2))
    assert disagreements(call._replace(query=call.query[:, :1], value=call.value[:1])) == []


def test_keys_that_are_shared_are_not_copied():
    call = drawn(5, 7, batch=(2, 3), key_batch=(2, 1))
    made = call_of([call.query, call.key, call.weight[None, None, None], call.value], PLAIN)
    assert made.key.shape == (2, 1, 7, 4)
    assert made.key.data_ptr() == call.key.data_ptr()
    assert (made.outer, made.inner) == (2, 3)


def test_transposed_heads_and_slices_are_read_where_they_are():
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


def test_a_transposed_token_axis():
    call = drawn(17, 18)
    query, key, value = (x.mT.contiguous().mT for x in (call.query, call.key, call.value))
    assert disagreements(call._replace(query=query, key=key, value=value)) == []


def test_float16_is_exact_and_comes_back_in_its_dtype():
    call = drawn(17, 18, bias=torch.randn(17, 18)).to(torch.float16)
    assert plan_of(call).rank == 0
    result = judged(call, torch.float16)
    assert result.complaints() == []
    assert [result.found[x].dtype for x in ("output", "log_mass", "key", "bias")] == [
        torch.float16, torch.float32, torch.float16, torch.float32,
    ]  # fmt: skip


def test_bfloat16_within_its_own_rounding():
    call = drawn(6, 17, spread=0.5)
    assert plan_of(call.to(torch.bfloat16)).rank > 0
    assert disagreements(call, torch.bfloat16) == []


def test_under_autocast_tokens_take_its_dtype():
    call = drawn(5, 7)
    device = call.query.device.type
    with torch.autocast(device, dtype=torch.float16):
        score = regard.scores.Additive.of_projected(4).eval()
        found = regard.inspect(call.query, call.key, call.value, score, backend="triton")
    assert (found.output.dtype, found.log_mass.dtype) == (torch.float16, torch.float32)
    tokens = (x.half() for x in (call.query, call.key, call.value))
    wanted = regard.inspect(*tokens, score, backend="triton")
    assert torch.equal(found.output, wanted.output)
