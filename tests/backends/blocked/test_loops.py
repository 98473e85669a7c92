"""Loops over pairs: compiled once for all sizes, taken by compiled callers alone, as exact as plain operations."""

import itertools

import pytest
import torch
from tests import bounds

import regard
from regard.backends.blocked import loops, operator
from regard.backends.blocked.loops import LoopTiles, has_compiler

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
compiling = pytest.mark.skipif("not has_compiler()", reason="loops need a C++ compiler")
SIZES = [(2, 40, 40, 40), (3, 17, 5, 6), (2, 2, 130, 3), (7, 3, 2, 130), (5, 5, 5, 2)]


def operands(loop, batch, queries, keys, hidden, dtype):
    """Positive u and v, and what a loop takes beside them."""
    u, v = (torch.randn(batch, n, hidden, dtype=dtype).exp() for n in (queries, keys))
    return u, v, torch.randn((batch, 1, hidden) if loop is loops._scores else (batch, queries, keys), dtype=dtype)


@compiling
@pytest.mark.parametrize("loop", [loops._scores, loops._pulls])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_program_serves_all_sizes_and_is_as_exact_as_plain_operations(loop, dtype):
    graphs = torch._dynamo.utils.counters["stats"]
    loops.run(loop, *operands(loop, 4, 6, 7, 5, dtype))
    before = graphs["unique_graphs"]
    for sizes in SIZES:
        tensors = operands(loop, *sizes, dtype)
        exact = loop(*(x.double() for x in tensors))
        for found, plain, right in zip(loops.run(loop, *tensors), loop(*tensors), exact, strict=True):
            bounds.assert_as_good(found, plain, right)
    assert graphs["unique_graphs"] == before


@compiling
def test_parameters_and_tensors_of_inference_mode_take_the_same_program():
    u, v, weight = operands(loops._scores, 2, 6, 6, 6, torch.float32)
    (right,) = loops.run(loops._scores, u, v, weight)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch.testing.assert_close(loops.run(loops._scores, u, v, torch.nn.Parameter(weight))[0], right)
    with torch.inference_mode():
        inner = [x.clone() for x in (u, v)]
        torch.testing.assert_close(loops.run(loops._scores, *inner, weight)[0], right)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


@compiling
def test_the_backward_pass_of_one_query_is_two_programs_whatever_its_strides():
    """One for each side: in a gradient turned over, the axis of size 1 has the stride of another."""
    loops._compiled.cache_clear()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for keys in (5, 6):
        tiles = LoopTiles([torch.randn(2, 1, 4), torch.randn(2, keys, 4), torch.randn(2, 1, 4)], [True] * 3)
        tiles.backward(slice(0, 1), slice(0, keys), torch.randn(2, 1, keys))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 2


@compiling
@pytest.mark.parametrize("at", range(4))
def test_a_size_of_1_is_taken(at):
    sizes = [1 if place == at else size for place, size in enumerate((3, 4, 6, 5))]
    tensors = operands(loops._scores, *sizes, torch.float32)
    torch.testing.assert_close(loops.run(loops._scores, *tensors), loops._scores(*tensors))


TOKENS = [torch.randn(2, n, 8) for n in (150, 140, 140)]
MASK = regard.Mask.causal(align="top_left") & regard.Mask.lengths(torch.tensor([140, 99]))


def results(tokens, score, backend, run):
    """Output and gradients; `run` has a caller called."""
    leaves = [x.clone().requires_grad_() for x in tokens]
    output = run(lambda *x: regard.attend(*x, score, MASK, backend=backend))(*leaves)
    return [output, *torch.autograd.grad(output.sin().sum(), [*leaves, *score.parameters()])]


def compiled(caller):
    """The outer program is not what is tested: torch only traces it."""
    return torch.compile(caller, fullgraph=True, backend="aot_eager")


@compiling
def test_a_compiled_caller_takes_loops_in_both_directions(monkeypatch):
    taken = []
    for name in ("identity_scores", "identity_backward"):
        sound = getattr(LoopTiles, name)
        monkeypatch.setattr(LoopTiles, name, lambda *at, sound=sound, name=name: taken.append(name) or sound(*at))
    score = regard.scores.Additive(8, 8, 16)
    found = results(TOKENS, score, "blocked", compiled)
    assert set(taken) == {"identity_scores", "identity_backward"}
    # How exact loops are is tested above; a promise of a few roundings for each tanh is more than the reference needs.
    exact = results([x.double() for x in TOKENS], score.double(), "reference", lambda caller: caller)
    for left, right in zip(found, exact, strict=True):
        bounds.assert_close(left, right, 1e-5 * right.abs().max().item())


def test_without_a_compiler_a_compiled_caller_takes_chunks(monkeypatch):
    monkeypatch.setattr(operator, "has_compiler", lambda: False)
    monkeypatch.setattr(LoopTiles, "__init__", lambda *_: pytest.fail("there is no compiler"))
    score = regard.scores.Additive(8, 8, 16)
    right = results(TOKENS, score, "blocked", lambda caller: caller)
    torch.testing.assert_close(results(TOKENS, score, "blocked", compiled), right)


def test_neither_an_eager_call_nor_an_exported_program_waits_for_a_compiler(monkeypatch):
    monkeypatch.setattr(LoopTiles, "__init__", lambda *_: pytest.fail("nothing is compiled here"))
    score = regard.scores.Additive(8, 8, 16)
    eager = results(TOKENS, score, "blocked", lambda caller: caller)

    class Module(torch.nn.Module):
        def forward(self, query, key, value):
            return regard.attend(query, key, value, score, MASK, backend="blocked")

    torch.testing.assert_close(torch.export.export(Module(), tuple(TOKENS)).module()(*TOKENS), eager[0])


@pytest.mark.parametrize("name", ["no-such-compiler", "false"])
def test_a_compiler_that_is_not_there_or_does_not_work_is_none(name):
    with torch._inductor.config.patch({"cpp.cxx": (None, name)}):
        assert not has_compiler.__wrapped__()


@compiling
def test_many_kinds_of_sizes_do_not_exhaust_the_programs_of_torch(monkeypatch):
    """Edges of tiles leave single rows and keys; beyond its limit torch would run a loop as it stands."""
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
    for sizes in itertools.product((1, 3), (1, 4), (1, 5), (1, 6)):
        tensors = operands(loops._scores, *sizes, torch.float32)
        torch.testing.assert_close(loops.run(loops._scores, *tensors), loops._scores(*tensors))
