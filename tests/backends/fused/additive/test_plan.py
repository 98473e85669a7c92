"""When the lift is taken: where a tolerance allows it and it pays. What it promises is at most the tolerance."""

import pytest
import torch
from tests.backends.fused.additive.judge import drawn, plan_of, score_of
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard.backends.fused.additive import plan as module
from regard.backends.fused.additive.lift import RANKS, WIDEST, lift_for, lift_of, promise_of, rank_for, sides_on
from regard.torch_compat import is_plain_tensor

EXACT = module.Plan(0, 0.0, 0.0, module.PROMISED)


def call(dtype=torch.float32, tokens=128, hidden=4, **settings):
    return drawn(tokens, tokens, hidden, 1, **settings).to(dtype)


@pytest.mark.parametrize("tolerance", [None, 5e-6, EXACT.error])
def test_float32_is_exact_unless_a_tolerance_is_looser_than_that(tolerance):
    assert plan_of(call(tolerance=tolerance)) == EXACT


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("tolerance", [2e-3, 1e-2])
def test_a_loose_tolerance_is_kept_by_the_smallest_rank(tolerance, gradient):
    found = plan_of(call(tolerance=tolerance), gradient=gradient)
    lift = lift_for(2.0, 2.0, tolerance, gradient)
    assert (found.rank, found.query_reach, found.key_reach) == (lift.rank, 2.0, 2.0)
    assert found.error == (max(lift.value_error, lift.slope_error) if gradient else lift.value_error)
    assert found.error <= tolerance
    fewer = lift_of(2.0, 2.0, found.rank - 2)
    assert max(fewer.value_error, fewer.slope_error if gradient else 0.0) > tolerance


def test_what_half_precision_cannot_promise_is_exact():
    """Two roundings of features of size 1 are 1e-3 already."""
    assert plan_of(call(tolerance=1e-5)) == EXACT


def test_bfloat16_is_as_coarse_as_the_lift_and_float16_is_not():
    coarse = plan_of(call(torch.bfloat16))
    assert coarse.rank > 0
    assert coarse.error <= 2.0**-8
    assert plan_of(call(torch.float16)) == EXACT
    assert plan_of(call(torch.bfloat16, tolerance=1e-5)) == EXACT


@pytest.mark.parametrize(("least", "lifted"), [(128**2 * 4, True), (128**2 * 4 + 1, False)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, None), (torch.float32, 2e-3)])
def test_a_lift_is_taken_where_it_is_faster(monkeypatch, dtype, tolerance, least, lifted):
    monkeypatch.setattr(module, "LEAST_WORK", least)
    assert (plan_of(call(dtype, tolerance=tolerance)).rank > 0) == lifted


@pytest.mark.parametrize(("tolerance", "lifted"), [(None, False), (2.0**-8, True)])
def test_a_compiled_caller_who_asks_for_a_lift_gets_it_at_any_length(monkeypatch, tolerance, lifted):
    planned = call(torch.bfloat16, tokens=32, tolerance=tolerance)
    score = score_of(planned)

    def pooled(query):
        """In float32, where a lift shows."""
        record = regard.inspect(query, planned.key, planned.value, score, tolerance=tolerance, backend="triton")
        return record.log_mass

    always = pooled(planned.query)
    monkeypatch.setattr(module, "LEAST_WORK", 2**31)
    never = pooled(planned.query)
    assert not torch.equal(always, never)
    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(planned.query), always if lifted else never)


def test_a_product_may_be_so_wide_and_no_wider():
    rank = plan_of(call(tolerance=2e-3)).rank
    assert rank in RANKS
    widest = WIDEST // rank
    assert plan_of(call(tokens=128, hidden=widest, tolerance=2e-3)).rank == rank
    assert plan_of(call(tokens=128, hidden=widest + 1, tolerance=2e-3)) == EXACT


@pytest.mark.parametrize(("queries", "keys", "lifted"), [(128, 128, True), (127, 128, False), (128, 127, False)])
def test_few_tokens_do_not_pay_for_their_features(monkeypatch, queries, keys, lifted):
    monkeypatch.setattr(module, "LEAST_TOKENS", 128)
    assert (plan_of(drawn(queries, keys, tolerance=2e-3)).rank > 0) == lifted


def test_what_the_lift_keeps_on_a_device_is_there_before_the_operator_runs():
    planned = call(tolerance=2e-3)
    sides_on.cache_clear()
    found = plan_of(planned)
    assert sides_on.cache_info().currsize == 1
    sides_on(planned.value.device, found.query_reach, found.key_reach, found.rank)
    assert sides_on.cache_info().hits == 1


def faked(pooled, query):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        pooled(mode.from_tensor(query))


WATCHED = {
    "fake": faked,
    "gradient": lambda pooled, query: torch.func.grad(lambda x: pooled(x).sum())(query),
    "vmap": lambda pooled, query: torch.vmap(pooled)(query[None]),
}


@pytest.mark.parametrize("watcher", WATCHED)
def test_what_is_kept_belongs_to_nobody_who_watches_the_first_call(watcher):
    planned = call(tokens=16, tolerance=2e-2)
    score = score_of(planned).eval()

    def pooled(query):
        return regard.attend(query, planned.key, planned.value, score, tolerance=2e-2, backend="triton")

    for kept in (lift_of, rank_for, sides_on, promise_of):
        kept.cache_clear()
    WATCHED[watcher](pooled, planned.query)
    found = plan_of(planned)
    assert found.rank > 0
    for side in sides_on(planned.query.device, found.query_reach, found.key_reach, found.rank):
        for table in side[1:]:
            assert is_plain_tensor(table)
            assert not torch._C._functorch.is_functorch_wrapped_tensor(table)
    assert pooled(planned.query).isfinite().all()


def test_the_range_is_that_of_the_score_whatever_the_tokens_are():
    plans = {plan_of(call(tolerance=2e-3, spread=spread, reach=(1.0, 5.0))) for spread in (0.1, 100.0)}
    assert len(plans) == 1
    (found,) = plans
    assert (found.query_reach, found.key_reach) == (1.0, 5.0)
