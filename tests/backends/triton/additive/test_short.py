"""Calls of few keys, whose forward pass is one launch, agree with the reference and keep their scores."""

import pytest
import torch
from tests.backends.triton.additive.judge import disagreements, drawn, problem_of

import regard
from regard import Mask
from regard.backends.triton import additive
from regard.backends.triton.launch import KnownCall, Launch, Tile, launch_or_repeat, layout_of
from regard.scores import Additive

pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.usefixtures("short_calls")]

CALLS = {
    "one pair": {"queries": 1, "keys": 1},
    "several tiles of both sides": {"queries": 33, "keys": 40},
    "tokens near 0": {"queries": 17, "keys": 18, "spread": 0.2},
    "large activations": {"queries": 17, "keys": 18, "spread": 15.0},
    "activations without a finite exponential": {"queries": 5, "keys": 18, "spread": 90.0},
    "wide values": {"queries": 5, "keys": 18, "value_dim": 130},
    "units that are no multiple of 4": {"queries": 6, "keys": 7, "hidden": 6},
    "keys of one batch": {"queries": 5, "keys": 7, "batch": (2, 2), "key_batch": (1, 2)},
    "causal": {"queries": 20, "keys": 33, "mask": Mask.causal(align="lower_right")},
    "a window": {"queries": 40, "keys": 40, "mask": Mask.window(5, 0, align="top_left")},
    "lengths and an empty example": {
        "queries": 3,
        "keys": 20,
        "batch": (2,),
        "mask": Mask.lengths(torch.tensor([17, 0])),
    },
    "bias": {"queries": 5, "keys": 18, "bias": torch.randn(5, 18)},
}


@pytest.mark.parametrize("name", CALLS)
def test_short_call_agrees_with_the_reference(name):
    call = drawn(**CALLS[name])
    assert additive.plan(problem_of(call), gradient=True).is_short
    assert disagreements(call) == []


def test_coarse_dtype():
    assert disagreements(drawn(5, 18), torch.bfloat16) == []


def test_weights_of_several_heads():
    query, key, value = (torch.randn(2, 3, tokens, 8, requires_grad=True) for tokens in (5, 9, 9))
    score = Additive.of_projected(8, heads=3)

    def results(backend):
        output = regard.attend(query, key, value, score, backend=backend)
        return output, *torch.autograd.grad(output.sin().sum(), (query, key, value, score.weight))

    for found, expected in zip(results("triton"), results("reference"), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_backward_pass_may_run_twice():
    """It does not overwrite the scores that the forward pass keeps."""
    query, key, value = (torch.randn(3, 6, 8, requires_grad=True) for _ in range(3))
    output = regard.attend(query, key, value, Additive.of_projected(8), backend="triton")
    first, second = (torch.autograd.grad(output.sum(), (query, key, value), retain_graph=True) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_long_and_large_calls_are_not_short(monkeypatch):
    assert not additive.plan(problem_of(drawn(3, 257)), gradient=True).is_short
    monkeypatch.setattr(additive, "MAX_SHORT_ELEMENTS", 3 * 5 * 4 - 1)
    assert not additive.plan(problem_of(drawn(3, 5, hidden=4)), gradient=True).is_short


# --- Known calls -----------------------------------------------------------------------------------------------


class Kernel:
    """A kernel that notes its arguments; compiled for its first ones, it notes those of repetitions, too."""

    arg_names = ("left", "right", "output", "count", "BM", "BN")

    def __init__(self):
        self.starts = []
        self.repetitions = []

    def __getitem__(self, grid):
        def start(*operands, num_warps=0, num_stages=0, **settings):
            self.starts.append((grid, [*operands, *(settings[name] for name in self.arg_names[len(operands) :])]))
            return Compiled(self)

        return start


class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *arguments: self.kernel.repetitions.append((grid[:1], list(arguments)))


def run(kernel, known, left, right):
    def prepare():
        output = torch.empty(left.shape)
        operands = (left, *left.stride()), (right.unsqueeze(0), *right.stride())
        return Launch(kernel, 7, [output], operands, Tile(16, 32, 4), {"output": output, "count": 3})

    return launch_or_repeat(known, layout_of([left, right]), [left, right], prepare)


def test_call_of_a_known_layout_repeats_the_launch_with_its_own_tensors():
    kernel, known = Kernel(), {}
    first = [torch.randn(4, 5), torch.randn(4, 5)]
    (output,) = run(kernel, known, *first)
    second = [torch.randn(4, 5), torch.randn(4, 5)]
    (other,) = run(kernel, known, *second)
    assert len(kernel.starts) == len(kernel.repetitions) == 1
    (grid, arguments), (again, repeated) = kernel.starts[0], kernel.repetitions[0]
    assert grid == again == (7,)
    assert [arguments[2] is output, repeated[2] is other] == [True, True]
    assert other.data_ptr() != output.data_ptr()
    for at in range(2):
        assert arguments[at][1:] == repeated[at][1:] == (5, 1)
        assert arguments[at][0].data_ptr() == first[at].data_ptr()
        assert repeated[at][0].data_ptr() == second[at].data_ptr()
    assert arguments[3:] == repeated[3:] == [3, 16, 32]


@pytest.mark.parametrize(
    "change",
    [
        lambda a, b: (a, a),
        lambda a, b: (a.mT.contiguous().mT, b),
        lambda a, b: (a.double(), b),
        lambda a, b: (a[:3], b),
        lambda a, b: (torch.randn(21)[1:].view(4, 5), b),
    ],
    ids=["one tensor twice", "strides", "dtype", "shape", "alignment"],
)
def test_other_layout_is_another_launch(change):
    kernel, known = Kernel(), {}
    first = torch.randn(4, 5), torch.randn(4, 5)
    run(kernel, known, *first)
    run(kernel, known, *change(*first))
    assert (len(kernel.starts), kernel.repetitions, len(known)) == (2, [], 2)


def test_call_with_a_copy_of_an_input_is_not_repeated():
    kernel, known, left = Kernel(), {}, torch.randn(4, 5)

    def prepare():
        output = torch.empty(4, 5)
        settings = {"output": output, "count": 3}
        return Launch(kernel, 7, [output], ((left.clone(), 5, 1), (left, 5, 1)), Tile(16, 32, 4), settings)

    for _ in range(2):
        launch_or_repeat(known, layout_of([left]), [left], prepare)
    assert len(kernel.starts) == 2
    assert not known


def test_known_calls_do_not_grow_without_bound(monkeypatch):
    monkeypatch.setattr("regard.backends.triton.launch.MAX_KNOWN_CALLS", 3)
    kernel, known = Kernel(), {}
    for tokens in range(1, 8):
        run(kernel, known, torch.randn(tokens, 5), torch.randn(tokens, 5))
        assert 1 <= len(known) <= 3
    assert all(isinstance(call, KnownCall) for call in known.values())
