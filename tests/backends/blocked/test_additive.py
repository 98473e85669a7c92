"""Additive tiles without a tanh for each pair: inside the promised error in each way; loops compile once."""

import itertools

import numpy as np
import pytest
import torch
from tests import bounds
from tests.contracts.additive_ways import in_plain_operations, take_units

import regard
from regard.backends import blocked
from regard.backends.blocked import additive
from regard.backends.blocked.additive import TANH_ERROR, ChunkedAdditive, CompiledAdditive, can_compile_loops
from regard.backends.blocked.scores import ALIGNMENT

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
compiling = pytest.mark.skipif("not can_compile_loops()", reason="loops need a C++ compiler")
SIZES = [(2, 40, 40, 40), (3, 17, 5, 6), (2, 2, 130, 3), (7, 3, 2, 130), (5, 5, 5, 2)]
ALL = slice(0, 101), slice(0, 103)
DTYPES = [torch.float32, torch.float64]
WAYS = [ChunkedAdditive, CompiledAdditive]


@pytest.fixture
def plain_loops(monkeypatch):
    in_plain_operations(monkeypatch)


def drawn(reach, hidden, dtype, heads=2):
    """Queries, keys and weights; |activations| reach up to `reach` and cancel, where their rounding is seen most."""
    signs = 2 * torch.randint(2, (heads, 1, hidden)) - 1
    centre = reach * signs * (1 - 0.1 * torch.rand(heads, 1, hidden, dtype=torch.float64))
    query, key = (side * centre + 0.3 * torch.randn(heads, n, hidden) for side, n in ((1, 101), (-1, 103)))
    query, key = (x.clamp(-reach, reach) for x in (query, key))
    weight = 2.0 * torch.randint(2, (heads, 1, hidden)) - 1
    return [x.to(dtype) for x in (query, key, weight)]


def by_tanh(query, key, weight):
    """eq. 12 in more digits than float64 needs: long double is not to be had, so float64 by tanh itself."""
    hidden = torch.tanh(query.double().unsqueeze(-2) + key.double().unsqueeze(-3))
    return (hidden * weight.double().unsqueeze(-2)).sum(-1)


@pytest.fixture(params=[2**11, 2**15, 2**21, "units", "loops"])
def way(request, monkeypatch, set_limits):
    """Chunks of a few pairs, of some rows and of the whole tile, the last ones shorter; unit by unit; or loops."""
    if request.param == "loops":
        return CompiledAdditive
    if request.param == "units":
        take_units(monkeypatch)
        monkeypatch.setattr(additive, "SUM_LENGTH", 16)
    else:
        set_limits(additive_chunk_elements=request.param)
    return ChunkedAdditive


@pytest.mark.parametrize("hidden", [1, 7, 84, 1000])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("plain_loops")
def test_a_score_is_off_by_at_most_the_written_bound(way, dtype, share, hidden):
    operands = drawn(share * way.max_activation[dtype], hidden, dtype)
    tiles = way(operands, [False] * 3)
    assert tiles._is_fast_safe(*ALL)
    allowed = TANH_ERROR * torch.finfo(dtype).eps * operands[2].double().abs().sum(-1).max()
    assert (tiles.scores(*ALL).double() - by_tanh(*operands)).abs().max() <= allowed


@pytest.mark.parametrize("hidden", [7, 20])
@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("plain_loops")
def test_a_gradient_is_off_by_at_most_the_written_bound(way, dtype, share, hidden):
    operands = drawn(share * way.max_activation[dtype], hidden, dtype)
    tiles = way(operands, [True] * 3)
    grad = torch.randn(2, 101, 103, dtype=torch.float64).to(dtype)
    tiles.accumulate(*ALL, grad.clone())
    leaves = [x.double().requires_grad_() for x in operands]
    exact = torch.autograd.grad(by_tanh(*leaves), leaves, grad.double())
    each = TANH_ERROR * torch.finfo(dtype).eps
    size, weight = grad.double().abs(), operands[2].double().abs()
    allowed = (
        size.sum(-1, keepdim=True) * weight,
        size.sum(-2).unsqueeze(-1) * weight,
        size.sum((-2, -1))[:, None, None],
    )
    for found, right, bound in zip(tiles.grads, exact, allowed, strict=True):
        assert ((found.double() - right).abs() <= each * bound).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("plain_loops")
def test_the_bound_is_kept_where_the_largest_activations_nearly_cancel(dtype, way):
    """One factor of uv is huge there, and the other tiny; in long double, more exact than float64."""
    for gap in (0.1, 0.5, 1.0):
        query = way.max_activation[dtype] * (0.9 + 0.1 * torch.rand(200, 4)) * (2 * torch.randint(2, (200, 4)) - 1)
        key = (gap - query).clamp(-way.max_activation[dtype], way.max_activation[dtype])
        operands = [x.to(dtype) for x in (query, key, torch.randn(1, 4))]
        found = way(operands, [False] * 3).scores(slice(0, 200), slice(0, 200)).numpy()
        a, b, w = (x.numpy().astype(np.longdouble) for x in operands)
        exact = (np.tanh(a[:, None] + b) * w).sum(-1)
        assert np.abs(found - exact).max() <= TANH_ERROR * torch.finfo(dtype).eps * np.abs(w).sum()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hidden", [64, 1024, 4096])
@pytest.mark.parametrize("activation", [0.15487, 0.687448263168335])
@pytest.mark.usefixtures("plain_loops")
def test_the_bound_is_kept_where_every_rounding_goes_the_same_way(way, hidden, activation, monkeypatch):
    """All units are alike."""
    if way is ChunkedAdditive:
        take_units(monkeypatch)
        monkeypatch.setattr(additive, "SUM_LENGTH", 16)
    elif hidden > 1000:
        pytest.skip("how loops are summed is the compiler's choice")
    query, weight = torch.full((1, hidden), activation), torch.full((1, hidden), 1.0008704662322998)
    key = (2 * torch.rand(512, 1) - 1).expand(-1, hidden).contiguous()
    found = way([query, key, weight], [False] * 3).scores(slice(0, 1), slice(0, 512)).double()
    allowed = TANH_ERROR * torch.finfo(torch.float32).eps * weight.double().sum()
    assert (found - by_tanh(query, key, weight)).abs().max() <= allowed


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e-6, 1e6, 1e30])
@pytest.mark.parametrize("share", [0.1, 1.0])
@pytest.mark.usefixtures("plain_loops")
def test_the_bound_is_kept_for_weights_of_any_size(way, size, share):
    query, key, weight = drawn(share * way.max_activation[torch.float32], 84, torch.float32)
    weight *= size * torch.randn(weight.shape)
    weight[..., 0] *= 1e-6
    found = way([query, key, weight], [False] * 3).scores(*ALL).double()
    allowed = TANH_ERROR * torch.finfo(torch.float32).eps * weight.double().abs().sum(-1).max()
    allowed += 84 * 2.0**-149  # subnormal weights: each product may be off by the smallest number
    assert (found - by_tanh(query, key, weight)).abs().max() <= allowed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("plain_loops")
def test_tiles_beyond_the_reach_take_tanh_and_stay_exact(dtype, way):
    operands = drawn(1.01 * way.max_activation[dtype], 7, dtype)
    operands[0][0, 0, 0] = 1.01 * way.max_activation[dtype]
    tiles = way(operands, [False] * 3)
    assert not tiles._is_fast_safe(*ALL)
    allowed = 4 * torch.finfo(dtype).eps * operands[2].double().abs().sum(-1).max()
    assert (tiles.scores(*ALL).double() - by_tanh(*operands)).abs().max() <= allowed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, 1e30])
@pytest.mark.usefixtures("plain_loops")
def test_one_wild_token_leaves_the_others_alone(garbage, way):
    query, key, weight = drawn(1.0, 7, torch.float32)
    key[:, 3] = garbage
    scores = way([query, key, weight], [False] * 3).scores(*ALL)
    others = [j for j in range(103) if j != 3]
    exact = by_tanh(query, key[:, others], weight)
    allowed = TANH_ERROR * torch.finfo(torch.float32).eps * weight.double().abs().sum(-1).max()
    assert (scores[..., others].double() - exact).abs().max() <= allowed


@pytest.mark.parametrize("most", [2**12, 2**16])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.usefixtures("plain_loops")
def test_no_tensor_has_more_numbers_with_a_hidden_axis_than_a_chunk(most, heads, learns, set_limits):
    """The textbook form would hold a number for each of the tile's pairs and 64 hidden units."""
    set_limits(additive_chunk_elements=most)
    query, key, weight = drawn(1.0, 64, torch.float32, heads)
    tiles = ChunkedAdditive([query[:1], key[:1], weight], [learns] * 3)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.ndim > 3 and min(result.shape[-3:-1]) > 1:
                largest = max(largest, result.numel())
            return result

    with Watch():
        tiles.scores(*ALL)
        if learns:
            tiles.accumulate(*ALL, torch.ones(heads, 101, 103))
    assert most / 8 < largest <= most
    assert tiles.scratch.buffer.nbytes <= 4 * most + 2 * ALIGNMENT


@pytest.mark.parametrize("shared", [{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}])
@pytest.mark.usefixtures("plain_loops")
def test_an_operand_that_heads_share_gets_the_gradients_of_all(shared, way):
    operands = [x[:1] if place in shared else x for place, x in enumerate(drawn(1.0, 7, torch.float64, heads=3))]
    tiles = way(operands, [True] * 3)
    torch.testing.assert_close(tiles.scores(*ALL), by_tanh(*operands))
    grad = torch.randn(3, 101, 103, dtype=torch.float64)
    tiles.accumulate(*ALL, grad.clone())
    leaves = [x.clone().requires_grad_() for x in operands]
    exact = torch.autograd.grad(by_tanh(*leaves), leaves, grad)
    for found, right in zip(tiles.grads, exact, strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wild", [torch.inf, -torch.inf, 3e38])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("is_forbidden", [False, True])
@pytest.mark.usefixtures("plain_loops")
def test_gradients_beside_an_activation_of_any_size(side, wild, is_forbidden, way):
    """tanh is flat there, and nothing of it may reach the group's other units; a mask may hide the token altogether."""
    operands = drawn(1.0, 7, torch.float32)
    operands[side][:, 3, 2] = wild
    grad = torch.randn(2, 101, 103)
    if is_forbidden:
        grad.select(side + 1, 3).zero_()
    tiles = way(operands, [True] * 3)
    tiles.accumulate(*ALL, grad.clone())
    leaves = [x.double().requires_grad_() for x in operands]
    exact = torch.autograd.grad(by_tanh(*leaves), leaves, grad.double())
    for found, right in zip(tiles.grads, exact, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)


def loop_operands(loop, batch, queries, keys, hidden, dtype):
    """Positive u and v, and what a loop takes beside them."""
    u, v = (torch.randn(batch, n, hidden, dtype=dtype).exp() for n in (queries, keys))
    shape = (batch, 1, hidden) if loop is additive._scores_loop else (batch, queries, keys)
    return u, v, torch.randn(shape, dtype=dtype)


@compiling
@pytest.mark.parametrize("loop", [additive._scores_loop, additive._sums_loop])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_program_serves_all_sizes_and_is_as_exact_as_plain_operations(loop, dtype):
    graphs = torch._dynamo.utils.counters["stats"]
    additive.run_loop(loop, *loop_operands(loop, 4, 6, 7, 5, dtype))
    before = graphs["unique_graphs"]
    for sizes in SIZES:
        tensors = loop_operands(loop, *sizes, dtype)
        exact = loop(*(x.double() for x in tensors))
        for found, plain, right in zip(additive.run_loop(loop, *tensors), loop(*tensors), exact, strict=True):
            bounds.assert_as_good(found, plain, right)
    assert graphs["unique_graphs"] == before


@compiling
def test_parameters_and_tensors_of_inference_mode_take_the_same_program():
    u, v, weight = loop_operands(additive._scores_loop, 2, 6, 6, 6, torch.float32)
    (right,) = additive.run_loop(additive._scores_loop, u, v, weight)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch.testing.assert_close(additive.run_loop(additive._scores_loop, u, v, torch.nn.Parameter(weight))[0], right)
    with torch.inference_mode():
        inner = [x.clone() for x in (u, v)]
        torch.testing.assert_close(additive.run_loop(additive._scores_loop, *inner, weight)[0], right)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


@compiling
def test_the_backward_pass_of_one_query_is_two_programs_whatever_its_strides():
    """One for each side: in a gradient turned over, the axis of size 1 has the stride of another."""
    additive._compiled.cache_clear()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for keys in (5, 6):
        tiles = CompiledAdditive([torch.randn(2, 1, 4), torch.randn(2, keys, 4), torch.randn(2, 1, 4)], [True] * 3)
        tiles.accumulate(slice(0, 1), slice(0, keys), torch.randn(2, 1, keys))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 2


@compiling
def test_a_loop_is_compiled_for_a_cpu_whatever_the_default_device():
    operands = loop_operands(additive._scores_loop, 3, 4, 6, 5, torch.float32)
    additive._compiled.cache_clear()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.device("meta"):
        (found,) = additive.run_loop(additive._scores_loop, *operands)
    torch.testing.assert_close(found, *additive._scores_loop(*operands))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1


@compiling
@pytest.mark.parametrize("at", range(4))
def test_a_size_of_1_is_taken(at):
    sizes = [1 if place == at else size for place, size in enumerate((3, 4, 6, 5))]
    tensors = loop_operands(additive._scores_loop, *sizes, torch.float32)
    torch.testing.assert_close(additive.run_loop(additive._scores_loop, *tensors), additive._scores_loop(*tensors))


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
    for name in ("fast_scores", "fast_accumulate"):
        sound = getattr(CompiledAdditive, name)
        recorded = lambda *at, sound=sound, name=name: taken.append(name) or sound(*at)  # noqa: E731
        monkeypatch.setattr(CompiledAdditive, name, recorded)
    score = regard.scores.Additive(8, 8, 16)
    found = results(TOKENS, score, "blocked", compiled)
    assert set(taken) == {"fast_scores", "fast_accumulate"}
    # How exact loops are is tested above; a promise of a few roundings for each tanh is more than the reference needs.
    exact = results([x.double() for x in TOKENS], score.double(), "reference", lambda caller: caller)
    for left, right in zip(found, exact, strict=True):
        bounds.assert_close(left, right, 1e-5 * right.abs().max().item())


def test_without_a_compiler_a_compiled_caller_takes_chunks(monkeypatch):
    monkeypatch.setattr(blocked, "can_compile_loops", lambda: False)
    monkeypatch.setattr(CompiledAdditive, "__init__", lambda *_: pytest.fail("there is no compiler"))
    score = regard.scores.Additive(8, 8, 16)
    right = results(TOKENS, score, "blocked", lambda caller: caller)
    torch.testing.assert_close(results(TOKENS, score, "blocked", compiled), right)


def test_neither_an_eager_call_nor_an_exported_program_waits_for_a_compiler(monkeypatch):
    monkeypatch.setattr(CompiledAdditive, "__init__", lambda *_: pytest.fail("nothing is compiled here"))
    score = regard.scores.Additive(8, 8, 16)
    eager = results(TOKENS, score, "blocked", lambda caller: caller)

    class Module(torch.nn.Module):
        def forward(self, query, key, value):
            return regard.attend(query, key, value, score, MASK, backend="blocked")

    torch.testing.assert_close(torch.export.export(Module(), tuple(TOKENS)).module()(*TOKENS), eager[0])


@pytest.mark.parametrize("name", ["no-such-compiler", "false"])
def test_a_compiler_that_is_not_there_or_does_not_work_is_none(name):
    with torch._inductor.config.patch({"cpp.cxx": (None, name)}):
        assert not can_compile_loops.__wrapped__()


@compiling
def test_many_kinds_of_sizes_do_not_exhaust_the_programs_of_torch(monkeypatch):
    """Edges of tiles leave single rows and keys; beyond its limit torch would run a loop as it stands."""
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
    for sizes in itertools.product((1, 3), (1, 4), (1, 5), (1, 6)):
        tensors = loop_operands(additive._scores_loop, *sizes, torch.float32)
        torch.testing.assert_close(additive.run_loop(additive._scores_loop, *tensors), additive._scores_loop(*tensors))
