"""Every backend x score x mask x dtype agrees with the reference: output, log_mass and every gradient."""

import pytest
import torch
from tests import bounds
from tests.contracts.additive_ways import take_loops, take_units
from tests.contracts.agreement import DTYPES, Case, build, disagreements, exact
from tests.contracts.cases import DOTS, MASKS, POSITIONED, SCORES
from tests.refuses import refuses

import regard
from regard.backends import dispatch
from regard.backends.blocked.additive import AdditiveScores, ChunkedAdditive, CompiledAdditive
from regard.scores.names import NAMED_SCORES, SIZED_SCORES
from regard.testing import dispatch_log

# triton takes distances and additive scores, the former in float32 and with some masks: tests/backends/triton judge it.
JUDGED = [name for name in dispatch.BACKENDS if name not in ("reference", "triton")]
LISTED = [*NAMED_SCORES, *SIZED_SCORES]
# Scores that torch computes as dot products of tokens with one more dimension, on a CPU.
GAUSSIANS = ("gaussian", "squared_distance") if torch.get_default_device().type == "cpu" else ()
# What one kernel does with masks, all do: a variant differs in its parameters.
VARIANTS = {name: ("none", "combination") for name in (*SCORES, *POSITIONED) if name not in LISTED}


def takes(backend: str, score: str, dtype: torch.dtype = torch.float32) -> bool:
    """Which scores a backend runs, said here a second time: one that refuses more than this fails."""
    return backend != "torch" or score in DOTS or (score.startswith(GAUSSIANS) and dtype.itemsize >= 4)


CASES = [
    pytest.param(backend, case := Case(score, mask, dtype, log_mass=backend != "torch"), id=f"{backend}-{case}")
    for backend in JUDGED
    for score in (*SCORES, *POSITIONED)
    for mask in VARIANTS.get(score, MASKS)
    for dtype in DTYPES
    if takes(backend, score, dtype)
]


@pytest.fixture(autouse=True)
def _small_tiles(set_limits):
    """The smallest tiles there are, 16 queries by 64 keys: every case has several and a ragged last one.

    Scores are formed again in the backward pass, as those of long inputs are.
    """
    set_limits(tile_pairs=1, kept_scores=0)


@pytest.mark.parametrize(("backend", "case"), CASES)
def test_the_backend_agrees_with_the_reference(backend, case):
    assert disagreements(case, backend) == []


ADDITIVE = [name for name in SCORES if name.startswith("additive")]
PER_HEAD = [name for name in SCORES if "per head" in name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("backend", "score"), [(b, s) for b in JUDGED for s in PER_HEAD if takes(b, s)])
def test_heads_with_parameters_of_their_own_may_share_queries_and_keys(backend, score, dtype):
    case = Case(score, "causal", dtype, log_mass=backend != "torch", large="additive" in score, shared=True)
    assert disagreements(case, backend) == []


@pytest.mark.parametrize("queries", [15, 16, 17, 33])
@pytest.mark.parametrize("keys", [63, 64, 65, 127, 129])
@pytest.mark.parametrize("score", ["scaled_dot", "biweight", "additive"])
def test_blocks_agree_around_the_edges_of_their_tiles(score, queries, keys):
    assert disagreements(Case(score, "combination", queries=queries, keys=keys), "blocked") == []


@pytest.mark.parametrize("length", [1, 63, 64, 65, 67])
def test_blocks_agree_for_lengths_around_the_edges_of_their_tiles(length):
    lengths = regard.Mask.lengths(torch.tensor([length, 64]))
    query, key, value = torch.randn(2, 19, 5), torch.randn(2, 67, 5), torch.randn(2, 67, 3)
    found = regard.attend(query, key, value, "gaussian", lengths, backend="blocked")
    for at, end in enumerate((length, 64)):
        alone = query[at], key[at, :end], value[at, :end]
        reference = regard.attend(*alone, "gaussian", backend="reference")
        exact = regard.attend(*(x.double() for x in alone), "gaussian", backend="reference")
        bounds.assert_as_good(found[at], reference, exact)


@pytest.mark.parametrize("score", ADDITIVE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("way", [ChunkedAdditive, CompiledAdditive])
def test_additive_blocks_agree_where_some_tiles_are_out_of_reach_of_the_identity(score, dtype, way, monkeypatch):
    within = []
    judge = AdditiveScores._is_fast_safe
    monkeypatch.setattr(AdditiveScores, "_is_fast_safe", lambda *at: within.append(judge(*at)) or within[-1])
    monkeypatch.setitem(way.max_activation, dtype, 8.0)
    if way is CompiledAdditive:
        take_loops(monkeypatch)
    assert disagreements(Case(score, "causal", dtype, large=True), "blocked") == []
    assert set(within) == {True, False}


@pytest.mark.parametrize("score", ADDITIVE)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("take", [take_loops, take_units])
def test_every_way_of_additive_blocks_agrees_with_the_reference(score, mask, dtype, take, monkeypatch):
    take(monkeypatch)
    assert disagreements(Case(score, mask, dtype), "blocked") == []


def test_the_cases_have_several_tiles_and_a_ragged_last_one():
    case, seen = Case("gaussian"), []
    call = build(case, case.dtype)
    spy = regard.backends.blocked.scores.DistanceScores
    with pytest.MonkeyPatch.context() as patch:
        scores = spy.scores
        patch.setattr(spy, "scores", lambda self, rows, cols: seen.append((rows, cols)) or scores(self, rows, cols))
        regard.attend(call.query, call.key, call.value, "gaussian", backend="blocked")
    shapes = {(rows.stop - rows.start, cols.stop - cols.start) for rows, cols in seen}
    assert shapes == {(16, 64), (16, 3), (3, 64), (3, 3)}


def test_every_score_and_every_mask_word_is_a_case():
    built = {type(case.build()).__name__ for case in SCORES.values()} | {
        type(make()).__name__ for make in POSITIONED.values()
    }
    assert built == set(regard.scores.__all__) - {"Score"}
    assert set(LISTED) <= set(SCORES)


def test_some_rows_of_the_cases_see_no_key():
    assert exact(Case("scaled_dot", "lengths"))["log_mass"].isneginf().any()
    assert exact(Case("scaled_dot", "keep"))["log_mass"].isneginf().any()


@pytest.mark.parametrize("score", [name for name in (*SCORES, *POSITIONED) if not takes("torch", name)])
def test_torch_refuses_what_is_no_dot_product(score):
    call = build(Case(score), torch.float32)
    with refuses("backend", "refuses", "torch"):
        regard.attend(call.query, call.key, call.value, call.score, backend="torch")


@pytest.mark.parametrize("backend", ["reference", *JUDGED])
def test_a_backend_asked_for_by_name_is_the_one_that_runs(backend):
    call = build(Case("scaled_dot"), torch.float32)
    with dispatch_log() as ran:
        regard.attend(call.query, call.key, call.value, backend=backend)
    assert ran == [backend] == [regard.why(call.query, call.key, call.value, backend=backend).backend]


@pytest.mark.parametrize("score", LISTED)
def test_auto_runs_what_why_says(score):
    call = build(Case(score), torch.float32)
    arguments = (call.query, call.key, call.value, call.score)
    with dispatch_log() as ran:
        regard.attend(*arguments)
    assert ran == [regard.why(*arguments).backend]
