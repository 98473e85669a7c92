"""Properties of any call: backends agree, the oracle agrees, the order of keys is nothing; run by `properties`."""

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st
from tests import bounds
from tests.contracts.agreement import DTYPES
from tests.contracts.cases import DOTS, POSITIONED, SCORES
from tests.stress.calls import (
    BIASES,
    CALLABLE,
    COMPACT,
    MASKS,
    NAMES,
    ROUNDINGS,
    AnyCall,
    disagreements,
    judged,
    make,
    slack,
)

import regard
from regard.checks import accumulation_dtype
from regard.testing import limits


def calls(names=NAMES, biases=BIASES):
    """Any call. One draw of bytes, each of which chooses one thing: a dozen draws would take longer than the call."""

    def chosen(drawn):
        seed, (name, first, second, joined, bias, dtype, batch, shared, queries, keys, spread, grid) = drawn
        score = _of(names, name)
        return AnyCall(
            score=score,
            masks=(_of(MASKS, first), _of(MASKS, second)),
            joined=_of(("", "", "and", "or", "without"), joined),
            bias=_of(biases, bias),
            dtype=_of(DTYPES, dtype),
            batch=_of(((), (1,), (2,), (2, 3)), batch),
            shared=_of(("", "", "query", "key", "value"), shared),
            queries=_of(range(1, 7), queries),
            keys=_of((1, 2, 3, 4, 5, 6, 64, 67), keys),
            spread=_of((0.1, 0.4, 1.0), spread),
            # Kernels that end get tokens on a grid, where every dtype sees the same pairs inside of them.
            grid=score.startswith(COMPACT) or grid % 2 == 1,
            seed=seed,
        )

    return st.tuples(st.integers(0, 2**31), st.binary(min_size=12, max_size=12)).map(chosen)


def _of(choices, number):
    return choices[number % len(choices)]


@pytest.fixture(autouse=True, scope="module")
def _small_tiles():
    """16 queries by 64 keys: 67 keys are two tiles."""
    with limits(tile_pairs=1):
        yield


@given(call=calls())
def test_blocks_agree_with_the_reference(call):
    assert list(disagreements(call, "blocked")) == []


@given(call=calls(DOTS, ("none", "full", "keys", "queries")))
def test_torch_agrees_with_the_reference(call):
    try:
        wrong = list(disagreements(call, "torch"))
    except regard.RegardError as refusal:
        event("refused")
        wrong = [] if "torch refuses" in str(refusal) else [str(refusal)]
    assert wrong == []


@given(call=calls())
def test_the_reference_in_a_dtype_agrees_with_itself_in_float64(call):
    assert list(disagreements(call, "reference")) == []


@given(call=calls([*(name for name in SCORES if name not in POSITIONED), CALLABLE]))
def test_the_oracle_agrees_with_the_reference(call):
    assert judged(call._replace(keys=min(call.keys, 7))) == []


@given(call=calls([name for name in NAMES if name != "rotary"], ("none", "keys")), shift=st.floats(-8, 8))
def test_the_order_of_keys_and_a_constant_are_nothing(call, shift):
    # In half precision the norm of a key is rounded as its numbers happen to lie in memory.
    call = call._replace(dtype=accumulation_dtype(call.dtype))
    made = make(call._replace(masks=("none", "none")))
    order = torch.randperm(call.keys, generator=torch.Generator().manual_seed(call.seed))
    bias = torch.zeros(call.keys, dtype=torch.float64) if made.bias is None else made.bias
    tokens = [x.to(call.dtype) for x in (made.query, made.key, made.value)]
    score = made.score.to(call.dtype) if isinstance(made.score, torch.nn.Module) else made.score
    other = tokens[0], tokens[1][..., order, :], tokens[2][..., order, :]
    with torch.no_grad():
        record = regard.inspect(*tokens, score, bias=bias.float())
        moved = regard.inspect(*other, score, bias=(bias[order] + shift).float())
    # The shifted bias is rounded to float32.
    rounded = ROUNDINGS * torch.finfo(torch.float32).eps * (1 + abs(shift) + bias.abs().max().item())
    allowed = 2 * slack(call, made, record.log_mass.double())["pooled"] + rounded
    assert bounds.error(moved.output, record.output) <= allowed + bounds.band(record.output, 0.0, call.dtype)
    assert bounds.error(moved.log_mass - shift, record.log_mass) <= allowed
