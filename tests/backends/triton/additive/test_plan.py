"""The lift is chosen where a tolerance allows it and it is faster, and its error bound is at most the tolerance."""

import pytest
import torch
from tests.backends.triton.additive.judge import drawn, plan_of, score_of
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard.backends.triton import additive
from regard.backends.triton.additive.lift import MAX_PRODUCT, RANKS, error_bound, lift_of, smallest_rank, tables_on
from regard.torch_compat import is_plain_tensor

EXACT = additive.Plan(0, 0.0, 0.0, is_short=False, error=additive.EXACT_ERROR)


def call(dtype=torch.float32, tokens=128, hidden=4, **settings):
    return drawn(tokens, tokens, hidden, 1, **settings).to(dtype)


@pytest.mark.parametrize("tolerance", [None, 5e-6, EXACT.error])
def test_float32_is_exact_unless_the_tolerance_is_above_the_exact_error(tolerance):
    assert plan_of(call(tolerance=tolerance)) == EXACT


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("tolerance", [2e-3, 1e-2])
def test_plan_has_the_smallest_rank_within_the_tolerance(tolerance, gradient):
    found = plan_of(call(tolerance=tolerance), gradient=gradient)
    lift = lift_of(2.0, 2.0, smallest_rank(2.0, 2.0, tolerance, gradient))
    assert (found.rank, found.query_range, found.key_range) == (lift.rank, 2.0, 2.0)
    assert found.error == (max(lift.value_error, lift.slope_error) if gradient else lift.value_error)
    assert found.error <= tolerance
    fewer = lift_of(2.0, 2.0, found.rank - 2)
    assert max(fewer.value_error, fewer.slope_error if gradient else 0.0) > tolerance


def test_tolerance_below_the_rounding_of_features_is_exact():
    """Two roundings of features of size 1 have an error of 1e-3."""
    assert plan_of(call(tolerance=1e-5)) == EXACT


def test_bfloat16_is_lifted_without_a_tolerance_and_float16_is_not():
    coarse = plan_of(call(torch.bfloat16))
    assert coarse.rank > 0
    assert coarse.error <= 2.0**-8
    assert plan_of(call(torch.float16)) == EXACT
    assert plan_of(call(torch.bfloat16, tolerance=1e-5)) == EXACT


@pytest.mark.parametrize(("least", "lifted"), [(128**2 * 4, True), (128**2 * 4 + 1, False)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, None), (torch.float32, 2e-3)])
def test_lift_is_chosen_where_it_is_faster(monkeypatch, dtype, tolerance, least, lifted):
    monkeypatch.setattr(additive, "MIN_LIFT_WORK", least)
    assert (plan_of(call(dtype, tolerance=tolerance)).rank > 0) == lifted


@pytest.mark.parametrize(("tolerance", "lifted"), [(None, False), (2.0**-8, True)])
def test_compiled_caller_with_a_tolerance_is_lifted_at_any_length(monkeypatch, tolerance, lifted):
    planned = call(torch.bfloat16, tokens=32, tolerance=tolerance)
    score = score_of(planned)

    def pooled(query):
        """Return log_mass, which is float32, so that the error of the lift is visible."""
        record = regard.inspect(query, planned.key, planned.value, score, tolerance=tolerance, backend="triton")
        return record.log_mass

    always = pooled(planned.query)
    monkeypatch.setattr(additive, "MIN_LIFT_WORK", 2**31)
    never = pooled(planned.query)
    assert not torch.equal(always, never)
    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(planned.query), always if lifted else never)


def test_products_longer_than_the_maximum_are_exact():
    rank = plan_of(call(tolerance=2e-3)).rank
    assert rank in RANKS
    widest = MAX_PRODUCT // rank
    assert plan_of(call(tokens=128, hidden=widest, tolerance=2e-3)).rank == rank
    assert plan_of(call(tokens=128, hidden=widest + 1, tolerance=2e-3)) == EXACT


@pytest.mark.parametrize(("queries", "keys", "lifted"), [(128, 128, True), (127, 128, False), (128, 127, False)])
def test_few_tokens_are_exact(monkeypatch, queries, keys, lifted):
    monkeypatch.setattr(additive, "MIN_LIFT_TOKENS", 128)
    assert (plan_of(drawn(queries, keys, tolerance=2e-3)).rank > 0) == lifted


def test_tables_are_cached_before_the_operator_runs():
    planned = call(tolerance=2e-3)
    tables_on.cache_clear()
    found = plan_of(planned)
    assert tables_on.cache_info().currsize == 1
    tables_on(planned.value.device, found.query_range, found.key_range, found.rank)
    assert tables_on.cache_info().hits == 1


def faked(pooled, query):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        pooled(mode.from_tensor(query))


TRACED = {
    "fake": faked,
    "gradient": lambda pooled, query: torch.func.grad(lambda x: pooled(x).sum())(query),
    "vmap": lambda pooled, query: torch.vmap(pooled)(query[None]),
}


@pytest.mark.parametrize("tracer", TRACED)
def test_cached_tables_do_not_belong_to_the_trace_of_the_first_call(tracer):
    planned = call(tokens=16, tolerance=2e-2)
    score = score_of(planned).eval()

    def pooled(query):
        return regard.attend(query, planned.key, planned.value, score, tolerance=2e-2, backend="triton")

    for cached in (lift_of, smallest_rank, tables_on, error_bound):
        cached.cache_clear()
    TRACED[tracer](pooled, planned.query)
    found = plan_of(planned)
    assert found.rank > 0
    for side in tables_on(planned.query.device, found.query_range, found.key_range, found.rank):
        for table in side[1:]:
            assert is_plain_tensor(table)
            assert not torch._C._functorch.is_functorch_wrapped_tensor(table)
    assert pooled(planned.query).isfinite().all()


def test_range_is_that_of_the_score_for_any_tokens():
    plans = {plan_of(call(tolerance=2e-3, spread=spread, reach=(1.0, 5.0))) for spread in (0.1, 100.0)}
    assert len(plans) == 1
    (found,) = plans
    assert (found.query_range, found.key_range) == (1.0, 5.0)
