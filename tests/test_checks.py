"""Shapes, dtypes and devices are checked once, and every refusal says what came and what is needed."""

import warnings

import pytest
import torch
from tests.refuses import refuses

import regard
from regard.checks import FLOATS, accumulation_dtype, broadcast_batch, check_inputs, describe


def tokens(*shape, **options):
    return torch.zeros(shape, **options)


def test_describe_says_dtype_shape_and_device():
    assert describe(tokens(2, 5, 3)) == "float32 (2, 5, 3) on cpu"
    assert describe([1, 2]) == "list [1, 2]"
    assert len(describe("x" * 1000)) < 80


@pytest.mark.parametrize("dtype", FLOATS)
def test_accumulation_is_in_float32_and_in_float64_for_float64(dtype):
    assert accumulation_dtype(dtype) == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [((), (), ()), ((2, 3), (2, 3), (2, 3)), ((1, 3), (2, 1), (2, 3)), ((0,), (1,), (0,)), ((1,), (0,), (0,))],
)
def test_batch_axes_are_equal_or_1(first, second, merged):
    assert broadcast_batch("key", first, second) == merged


@pytest.mark.parametrize(("first", "second"), [((2,), (3,)), ((2, 3), (2, 4)), ((0,), (2,))])
def test_batch_axes_that_differ_are_refused(first, second):
    with refuses("key", "or 1"):
        broadcast_batch("key", first, second)


def test_good_inputs_pass():
    check_inputs(tokens(2, 1, 5, 3), tokens(1, 3, 7, 4), tokens(2, 1, 7, 2))
    check_inputs(tokens(5, 3), tokens(7, 4), tokens(7, 2))
    check_inputs(tokens(2, 5, 3), tokens(2, 5, 3), tokens(2, 5, 3))


GOOD = tokens(2, 5, 3)

REFUSED = {
    "no tensor": (([[1.0]], GOOD, GOOD), "query", "list"),
    "integers": ((GOOD, GOOD.long(), GOOD), "key", "int64 (2, 5, 3) on cpu"),
    "complex": ((GOOD, GOOD, GOOD.to(torch.complex64)), "value", "complex64"),
    "one axis": ((tokens(3), tokens(3), tokens(3)), "query", "at least two axes"),
    "ranks": ((GOOD, GOOD[0], GOOD), "key", "while query is"),
    "dtypes": ((GOOD, GOOD, GOOD.double()), "value", "query, key and value of one dtype"),
    "devices": ((GOOD, GOOD, tokens(2, 5, 3, device="meta")), "value", "on meta"),
    "batch": ((GOOD, tokens(3, 5, 3), GOOD), "key", "batch axes (3,), while the other batch axes are (2,)"),
    "value batch": ((GOOD, GOOD, tokens(4, 5, 3)), "value", "batch axes"),
    "rows": ((GOOD, GOOD, tokens(2, 4, 3)), "value", "4 rows for 5 keys"),
    "sparse": (
        (GOOD, GOOD.to_sparse(), GOOD),
        "key",
        "a torch.sparse_coo tensor",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_inputs_are_refused_with_what_came_and_what_is_needed(case):
    inputs, argument, word = REFUSED[case]
    with refuses(argument, word):
        check_inputs(*inputs)


def test_nested_tensors_are_refused_or_run():
    with warnings.catch_warnings(action="ignore"):  # torch's own, that they are a prototype
        parts = [torch.randn(2, 5, 8), torch.randn(2, 3, 8)]
        ragged = torch.nested.nested_tensor(parts)
        jagged = torch.nested.nested_tensor([x.transpose(0, 1) for x in parts], layout=torch.jagged).transpose(1, 2)
    with refuses("query", "to_padded_tensor", "Mask.lengths"):
        regard.attend(ragged, ragged, ragged)
    for found, alone in zip(regard.attend(jagged, jagged, jagged).unbind(), parts, strict=True):
        torch.testing.assert_close(found, regard.attend(alone, alone, alone))
