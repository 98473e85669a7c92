"""Padded batches on a CPU: each example over its own keys, the same numbers, and padding that nobody reads."""

import pytest
import torch
from tests.bounds import assert_as_good
from torch.nn import functional

import regard
from regard import Mask
from regard.backends import one_by_one, torch_sdpa
from regard.shapes import FLOATS

TOKENS = 17
REAL = torch.tensor([[True] * 3 + [False] * 14, [True] * TOKENS, [False] * 5 + [True] * 11 + [False]])
CAUSAL = Mask.causal()
# What is said, and how many keys each call of torch is given, and whether it is a causal one.
CUT = {
    "lengths": (Mask.lengths(torch.tensor([3, 17, 11])), [3, 17, 11], False),
    "beyond the end": (Mask.lengths(torch.tensor([3, 99, 11])), [3, 17, 11], False),
    "alike": (Mask.lengths(torch.tensor([5, 5, 5])), [5], False),
    "some alike": (Mask.lengths(torch.tensor([5, 5, 9])), [5, 9], False),
    "one for all": (Mask.lengths(torch.tensor(5)), [5], False),
    "all": (Mask.lengths(torch.tensor([17, 17, 17])), [17], False),
    "padding before and behind": (Mask.keys(REAL), [3, 17, 11], False),
    "causal": (Mask.lengths(torch.tensor([3, 17, 16])) & CAUSAL, [3, 17, 16], True),
    "causal first": (CAUSAL & Mask.keys(REAL[:2].repeat(2, 1)[:3]), [3, 17, 3], True),
}
WHOLE = {
    "an example without keys": Mask.lengths(torch.tensor([3, 0, 11])),
    "nothing": Mask.lengths(torch.tensor([0, 0, 0])),
    "gaps": Mask.keys(torch.arange(TOKENS).repeat(3, 1) % 3 > 0),
    "a length for each head": Mask.lengths(torch.tensor([[3, 4], [17, 1], [11, 2]])),
    "a length for each query": Mask.lengths_per_query(torch.arange(3 * TOKENS).view(3, TOKENS) % 16 + 1),
    "padding before, causal": Mask.keys(REAL) & CAUSAL,
    "a window": Mask.lengths(torch.tensor([3, 17, 11])) & Mask.window(4, 0),
}


@pytest.fixture(autouse=True)
def _everything_is_enough(monkeypatch, set_limits):
    set_limits(example_pairs=0)
    monkeypatch.setattr(one_by_one, "FEW_NUMBERS", 0)


@pytest.fixture
def calls(monkeypatch):
    """Every call of torch: how many keys, whether it has a mask, and whether it is a causal one."""
    seen, real = [], functional.scaled_dot_product_attention

    def spy(query, key, value, mask, dropout, causal, **options):
        seen.append((key.shape[-2], mask is not None, causal))
        return real(query, key, value, mask, dropout, causal, **options)

    monkeypatch.setattr(torch_sdpa.functional, "scaled_dot_product_attention", spy)
    monkeypatch.setattr(torch_sdpa, "VECTOR", 0)  # its masks of short calls are another matter
    return seen


def drawn(*batch, dtype=torch.float64, queries=TOKENS):
    counts = (queries, TOKENS, TOKENS)
    return [torch.randn(*batch, count, 4, dtype=dtype).requires_grad_() for count in counts]


def with_gradients(output, tokens):
    along = torch.linspace(-1, 1, output.numel()).view(output.shape).to(output.dtype)
    return [output, *torch.autograd.grad(output, tokens, along)]


def assert_like_the_reference(tokens, mask):
    wide = [x.detach().double().requires_grad_() for x in tokens]
    found, own, exact = (
        with_gradients(regard.attend(*inputs, mask=mask, backend=backend), inputs)
        for inputs, backend in ((tokens, "torch"), (tokens, "reference"), (wide, "reference"))
    )
    for what, *results in zip(("output", "query", "key", "value"), found, own, exact, strict=True):
        assert_as_good(*results, what)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CUT)
def test_numbers_and_gradients_are_those_of_the_reference(calls, name, dtype):
    mask, keys, causal = CUT[name]
    assert_like_the_reference(drawn(3, 2, dtype=dtype), mask)
    assert calls == [(count, False, causal) for count in keys]


@pytest.mark.parametrize("name", WHOLE)
def test_other_masks_are_handed_over(calls, name):
    assert_like_the_reference(drawn(3, 2), WHOLE[name])
    assert [is_masked for _, is_masked, _ in calls] == [True]


@pytest.mark.parametrize("batch", [(3,), (3, 2), (3, 2, 2)], ids=len)
def test_any_number_of_batch_axes(calls, batch):
    assert_like_the_reference(drawn(*batch, queries=5), CUT["lengths"][0])
    assert [keys for keys, *_ in calls] == [3, 17, 11]


def test_heads_may_share_keys_but_examples_may_not(calls):
    query, key, value = drawn(3, 2, 2)
    mask = CUT["lengths"][0]
    assert_like_the_reference([query, *(x.detach()[:, :, :1].requires_grad_() for x in (key, value))], mask)
    assert [keys for keys, *_ in calls] == [3, 17, 11]
    calls.clear()
    query, key, value = drawn(3, 2)
    assert_like_the_reference([query, *(x.detach()[:1].requires_grad_() for x in (key, value))], mask)
    assert [keys for keys, *_ in calls] == [17]


@pytest.mark.parametrize("garbage", [torch.inf, torch.nan])
def test_padding_is_not_read(garbage):
    clean, mask = drawn(3, 2, dtype=torch.float32), CUT["padding before and behind"][0]
    dirty = [x.detach().clone() for x in clean]
    for x in dirty[1:]:
        x.transpose(1, 2)[~REAL] = garbage
    dirty = [x.requires_grad_() for x in dirty]
    results = (with_gradients(regard.attend(*x, mask=mask, backend="torch"), x) for x in (clean, dirty))
    for left, right in zip(*results, strict=True):
        assert torch.equal(left, right)
    assert (right.transpose(1, 2)[~REAL] == 0).all()


@pytest.mark.parametrize("name", ["lengths", "causal", "padding before and behind"])
def test_a_query_that_is_nan_is_answered_by_nan(name):
    """torch's own kernel answers by 0 where the keys are fewer than a vector has numbers."""
    query, key, value = (x.detach() for x in drawn(3, 2))
    query[0, :, 4, 0] = torch.nan
    output = regard.attend(query, key, value, mask=CUT[name][0], backend="torch")
    assert output[0, :, 4].isnan().all()
    output[0, :, 4] = 0
    assert output.isfinite().all()


def test_heads_stay_where_a_layer_joins_them():
    output = regard.attend(*drawn(3, 2), mask=CUT["lengths"][0], backend="torch")
    assert output.transpose(1, 2).is_contiguous()


def test_few_pairs_are_one_call(monkeypatch, calls):
    tokens, mask = drawn(3, 2), CUT["lengths"][0]
    pairs = 2 * TOKENS**2
    for learns in (False, True):
        for enough, count in ((pairs, 3), (pairs + 1, 1)):
            monkeypatch.setattr(one_by_one, "ENOUGH_PAIRS", (0, enough) if learns else (enough, 0))
            with torch.set_grad_enabled(learns):
                regard.attend(*tokens, mask=mask, backend="torch")
            assert len(calls) == count
            calls.clear()


def test_long_causal_padding_needs_no_matrix(set_limits):
    set_limits(mask_entries=3 * TOKENS**2 - 1)
    tokens = drawn(3, 2)
    assert regard.why(*tokens, mask=CUT["causal"][0]).backend == "torch"
    assert regard.why(*tokens, mask=WHOLE["padding before, causal"]).backend != "torch"


def test_masks_that_change_are_asked_anew(calls):
    """A matrix belongs to its user, who may write to it."""
    tokens, real = drawn(3, 2), torch.ones(3, 1, 1, TOKENS, dtype=torch.bool)
    mask = Mask.keep(real)
    regard.attend(*tokens, mask=mask, backend="torch")
    real[..., 4:] = False
    regard.attend(*tokens, mask=mask, backend="torch")
    assert [keys for keys, *_ in calls] == [TOKENS, 4]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch on vmap of its own attention
def test_those_who_watch_see_one_call(calls):
    tokens, mask = [x.detach() for x in drawn(3, 2)], CUT["lengths"][0]
    expected = regard.attend(*tokens, mask=mask, backend="torch")
    calls.clear()
    compiled = torch.compile(
        lambda *x: regard.attend(*x, mask=mask), fullgraph=True, backend="aot_eager", dynamic=False
    )(*tokens)
    mapped = torch.vmap(lambda *x: regard.attend(*x, mask=mask))(*(x[None] for x in tokens))[0]
    assert [keys for keys, *_ in calls] == [TOKENS, TOKENS]
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(mapped, expected)
