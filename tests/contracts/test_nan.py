"""NaN propagates: the output of a query is NaN if a score that counts for it is NaN, and only then."""

import math

import pytest
import torch
from tests.contracts.cases import HEADS, SCORES

import regard
from regard import Mask

# Triton's interpreter computes with NumPy, which warns where NaN is met.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DOTS = ("dot", "scaled_dot", "cosine", "cosine scaled", "bilinear", "bilinear per head", "softcap")
ADDITIVE = ("additive", "additive per head")
NAMES = [name for name in SCORES if "learnable" not in name]
DISTANCES = [name for name in NAMES if name not in (*DOTS, *ADDITIVE)]
# Large is several tiles; Triton's interpreter takes a minute where a backend takes a millisecond.
SIZES = {"small": (5, 7), "large": (600, 600)}
INTERPRETED = {"small": (5, 7), "large": (70, 130)}


def backends_of(name):
    """Every backend that runs a score."""
    if name in DOTS:
        return ["reference", "blocked"] if name == "softcap" else ["reference", "blocked", "torch"]
    return ["reference", "blocked", "triton"]


CAUSAL = Mask.causal("top_left")
ALL = [(name, backend) for name in NAMES for backend in backends_of(name)]
DISTANT = [(name, backend) for name in DISTANCES for backend in backends_of(name)]


def drawn(name, size, backend):
    """A score, and tokens so near to each other that every compact kernel gives every pair a weight."""
    case, (queries, keys) = SCORES[name], (INTERPRETED if backend == "triton" else SIZES)[size]
    heads = HEADS if "per head" in name else 1
    query = 0.1 * torch.randn(1, heads, queries, case.query_dim)
    key = 0.1 * torch.randn(1, heads, keys, case.key_dim)
    return case.build(), query, key, torch.randn(1, heads, keys, 2)


def assert_nan_rows(name, backend, tokens, mask, expected):
    """Output, weights and log_mass are NaN in the expected rows, (queries,), and finite in all others.

    For dot products by torch there is no record: its output alone is looked at.
    """
    score, query, key, value = tokens
    output = regard.attend(query, key, value, score, mask, backend=backend)
    assert torch.equal(output.isnan().all(-1), expected.expand(output.shape[:-1]))
    assert output[..., ~expected, :].isfinite().all()
    if backend == "torch":
        return
    record = regard.inspect(query, key, value, score, mask, backend=backend)
    torch.testing.assert_close(record.output, output, equal_nan=True)
    weights = record.weights()
    assert torch.equal(record.log_mass.isnan(), expected.expand(output.shape[:-1]))
    assert torch.equal(weights.isnan().any(-1), expected.expand(output.shape[:-1]))
    total = weights[..., ~expected, :].sum(-1)
    torch.testing.assert_close(total, (record.log_mass[..., ~expected] > -math.inf).float())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "backend"), ALL)
def test_nan_query_makes_its_own_row_nan(name, backend, size):
    score, query, key, value = drawn(name, size, backend)
    query[..., 3, 0] = math.nan
    assert_nan_rows(name, backend, (score, query, key, value), None, torch.arange(query.shape[-2]) == 3)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "backend"), ALL)
def test_nan_key_makes_every_row_that_attends_to_it_nan(name, backend, size):
    score, query, key, value = drawn(name, size, backend)
    key[..., 2, 0] = math.nan
    rows = torch.arange(query.shape[-2])
    assert_nan_rows(name, backend, (score, query, key, value), None, rows >= 0)
    if backend == "torch":  # which adds masks to scores: NaN may also reach the rows from which it is hidden
        assert regard.attend(query, key, value, score, CAUSAL, backend=backend)[..., 2:, :].isnan().all()
    else:
        assert_nan_rows(name, backend, (score, query, key, value), CAUSAL, rows >= 2)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "backend"), DISTANT)
def test_infinite_query_is_nan_against_an_infinite_key_alone(name, backend, size):
    score, query, key, value = drawn(name, size, backend)
    query[..., 3, 0] = key[..., 4, 0] = math.inf
    rows = torch.arange(query.shape[-2])
    assert_nan_rows(name, backend, (score, query, key, value), None, rows == 3)
    # The infinite key is hidden: infinitely far from all others, the query finds no mass.
    assert_nan_rows(name, backend, (score, query, key, value), CAUSAL, rows < 0)
    output = regard.attend(query, key, value, score, CAUSAL, backend=backend)
    assert (output[..., 3, :] == 0).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "backend"), ALL)
def test_nan_query_without_keys_gives_zero(name, backend, size):
    score, query, key, value = drawn(name, size, backend)
    query[..., 3, 0] = math.nan
    rows = torch.arange(query.shape[-2])
    masks = [Mask.lengths(torch.zeros(1, dtype=torch.int64))]
    if backend != "triton" or name in ADDITIVE:  # for distances triton has no mask that differs between rows
        masks.append(Mask.keep((rows != 3)[:, None].expand(-1, key.shape[-2])))
    for mask in masks:
        assert_nan_rows(name, backend, (score, query, key, value), mask, rows < 0)
        output = regard.attend(query, key, value, score, mask, backend=backend)
        assert (output[..., 3, :] == 0).all()


@pytest.mark.parametrize("tokens", [2, 7, 40, 600])
def test_nan_query_of_an_empty_sequence_gives_zero(tokens):
    query, key, value = torch.randn(3, 2, 2, tokens, 8)
    query[0, :, 1, 0] = query[1, :, 1, 0] = math.nan
    for lengths in (Mask.lengths(torch.tensor([0, 1])), Mask.lengths(torch.tensor([0, 1])) & Mask.causal()):
        output = regard.attend(query, key, value, mask=lengths)
        assert (output[0] == 0).all()
        assert output[1, :, 1].isnan().all()
        assert output[1, :, 0].isfinite().all()
