"""merge is exact: poolings over any split of the keys are the pooling over all of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import bounds
from tests.contracts.agreement import DTYPES
from tests.contracts.cases import SCORES
from tests.refuses import refuses

import regard
from regard import Mask, RegardError, testing
from regard.attention import Attended

QUERIES, KEYS = 5, 11
BACKENDS = ("reference", "blocked")


def drawn(dtype=torch.float64, dim=5):
    shapes = (2, QUERIES, dim), (2, KEYS, dim), (2, KEYS, 3)
    return [(0.2 * torch.randn(shape, dtype=torch.float64)).to(dtype).requires_grad_() for shape in shapes]


def pieces(query, key, value, seen, ends, score="gaussian", backend="reference"):
    """One record for each run of keys between two ends."""
    starts = [0, *ends]
    for start, end in zip(starts, [*ends, KEYS], strict=True):
        at = slice(start, end)
        mask = Mask.keep(seen[..., at])
        # Blocks refuse what is empty: an empty part goes to auto.
        yield regard.inspect(query, key[:, at], value[:, at], score, mask, backend=backend if end > start else "auto")


@given(
    seed=st.integers(0, 2**31),
    ends=st.lists(st.integers(0, KEYS), max_size=4).map(sorted),
    share=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    backend=st.sampled_from(BACKENDS),
    score=st.sampled_from(["scaled_dot", "gaussian", "biweight", "boxcar"]),
)
def test_any_split_of_the_keys_merges_to_the_whole(seed, ends, share, backend, score):
    """Empty parts, rows that see nothing in some part, and rows that see nothing at all are among them."""
    torch.manual_seed(seed)
    leaves = drawn()
    seen = torch.rand(2, QUERIES, KEYS) < share
    whole = regard.inspect(*leaves, score, Mask.keep(seen), backend=backend)
    merged = regard.merge(list(pieces(*leaves, seen, ends, score, backend)))

    def results(record):
        found = record.output, record.log_mass, record.weights(), record.entropy(), record.key_mass()
        torch.manual_seed(seed)
        outputs = [x for x in found if x.requires_grad]
        cotangents = [torch.randn_like(x) for x in outputs]
        return *found, *torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True, materialize_grads=True)

    for found, expected in zip(results(merged), results(whole), strict=True):
        # Near the edge of a kernel log f answers a rounding of the distance a thousandfold.
        bounds.assert_close(found, expected, bounds.roundings(expected, 2**16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_merge_is_as_good_as_the_whole_in_every_dtype(backend, dtype):
    leaves = [x.detach() for x in drawn(dtype)]
    seen = torch.rand(2, QUERIES, KEYS) < 0.7
    seen[0, 0] = False
    merged = regard.merge(list(pieces(*leaves, seen, [4, 4, 9], backend=backend)))
    reference = regard.inspect(*leaves, "gaussian", Mask.keep(seen), backend="reference")
    exact = regard.inspect(*(x.double() for x in leaves), "gaussian", Mask.keep(seen), backend="reference")
    assert merged.output.dtype == dtype
    # Each part is rounded to the dtype once before it is merged.
    own = bounds.error(reference.output, exact.output)
    allowed = bounds.band(exact.output, own + testing.ulp(exact.output, dtype) * (dtype != torch.float64), dtype)
    bounds.assert_close(merged.output, exact.output, allowed)
    bounds.assert_as_good(merged.log_mass, reference.log_mass, exact.log_mass)


@pytest.mark.parametrize("score", ["additive per head", "triangular per head", "scaled_dot"])
def test_merging_works_for_scores_with_parameters(score):
    module = SCORES[score].build().double()
    query, key, value = (torch.randn(3, n, 5, dtype=torch.float64) for n in (QUERIES, KEYS, KEYS))
    whole = regard.inspect(query, key, value, module)
    halves = [regard.inspect(query, key[:, at], value[:, at], module) for at in (slice(0, 6), slice(6, None))]
    bounds.assert_close(regard.merge(halves).output, whole.output, bounds.roundings(whole.output, 64))


def test_a_sink_is_never_counted_twice():
    """Each part has given the sink its share already: the parts merge to the whole, or are refused."""
    sink = regard.scores.ScaledDot(sink=2).double()
    query, key, value = drawn()
    whole = regard.inspect(query, key, value, sink)
    halves = [regard.inspect(query, key[:, at], value[:, at], sink) for at in (slice(0, 6), slice(6, None))]
    try:
        merged = regard.merge(halves)
    except RegardError as error:
        assert "sink" in str(error)  # noqa: PT017
    else:
        bounds.assert_close(merged.output, whole.output, bounds.roundings(whole.output, 64))


def test_merging_is_associative_and_one_part_is_itself():
    leaves = drawn()
    seen = torch.ones(2, QUERIES, KEYS, dtype=torch.bool)
    first, second, third = pieces(*leaves, seen, [3, 8])
    nested = regard.merge([regard.merge([first, second]), third])
    flat = regard.merge([first, second, third])
    bounds.assert_same(nested.output, flat.output)
    bounds.assert_same(nested.weights(), flat.weights())
    bounds.assert_same(regard.merge([first]).output, first.output)


def test_keys_are_numbered_part_after_part():
    query, key, value = drawn()
    seen = torch.ones(2, QUERIES, KEYS, dtype=torch.bool)
    second, first = pieces(query, key, value, seen, [4])
    swapped = regard.merge([first, second])
    order = [*range(4, KEYS), *range(4)]
    whole = regard.inspect(query, key[:, order], value[:, order], "gaussian")
    bounds.assert_close(swapped.weights(), whole.weights(), bounds.roundings(whole.weights(), 64))


def test_rows_that_no_part_sees_stay_empty_with_gradient_0():
    query, key, value = drawn()
    nothing = torch.zeros(2, QUERIES, KEYS, dtype=torch.bool)
    merged = regard.merge(list(pieces(query, key, value, nothing, [4])))
    assert (merged.output == 0).all()
    assert (merged.log_mass == -torch.inf).all()
    assert (merged.weights() == 0).all()
    gradients = torch.autograd.grad((merged.output.sum(), merged.log_mass.sum()), (query, key, value))
    assert all((gradient == 0).all() for gradient in gradients)


def test_records_made_by_hand_merge_without_weights():
    parts = [Attended(torch.ones(5, 2), torch.zeros(5)), Attended(torch.zeros(5, 2), torch.zeros(5))]
    merged = regard.merge(parts)
    assert torch.equal(merged.output, torch.full((5, 2), 0.5))
    with refuses("Attended", "returned", "inspect", "record"):
        merged.weights()


@pytest.mark.parametrize("parts", [[], None, 3, ()])
def test_nothing_to_merge_is_refused(parts):
    with refuses("parts"):
        regard.merge(parts)


def test_one_record_is_no_sequence_of_them():
    record = regard.inspect(*(torch.randn(3, 2) for _ in range(3)))
    with refuses("parts", "Attended", "sequence", "least"):
        regard.merge(record)


def test_parts_that_do_not_belong_together_are_refused():
    def record(*shape, dtype=torch.float32):
        return Attended(torch.zeros(shape, dtype=dtype), torch.zeros(shape[:-1]))

    with refuses("parts", "outputs", "same queries"):
        regard.merge([record(5, 2), record(4, 2)])
    with refuses("parts", "outputs", "same queries"):
        regard.merge([record(5, 2), record(5, 2, dtype=torch.float64)])
    with refuses("parts", "inspect", "instead", "attend"):
        regard.merge([record(5, 2), torch.zeros(5, 2)])
    with refuses("parts", "mass"):
        regard.merge([Attended(torch.zeros(5, 2), torch.zeros(4))])
    with refuses("parts"):
        regard.merge(record(5, 2))
    with refuses("parts", "tensors"):
        regard.merge([Attended(1, 2)])


def test_parts_live_on_one_device():
    parts = [regard.inspect(*(torch.randn(3, 2, device=device) for _ in range(3))) for device in ("cpu", "meta")]
    with refuses("parts", "device"):
        regard.merge(parts)
