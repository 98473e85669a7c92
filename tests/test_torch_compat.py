"""Who looks at a call is noticed: tracers, transforms, modes, subclasses; and then no number is read."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from regard.torch_compat import can_read_values, is_exporting, is_plain_tensor, is_traced

ONE = torch.ones(1)


def noticed() -> tuple[list[bool], object]:
    """A function that notes whether it is watched, and the notes."""
    notes: list[bool] = []

    def look(x: Tensor) -> Tensor:
        notes.append(is_traced())
        return x + 1

    return notes, look


WATCHERS = {
    "vmap": lambda look: torch.vmap(look)(ONE),
    "grad": lambda look: torch.func.grad(lambda x: look(x).sum())(ONE),
    "make_fx": lambda look: make_fx(look)(ONE),
    "make_fx before dispatch": lambda look: make_fx(look, pre_dispatch=True)(ONE),
    "jit.trace": lambda look: torch.jit.trace(look, ONE, check_trace=False),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("watcher", WATCHERS)
def test_tracers_and_transforms_are_noticed(watcher):
    notes, look = noticed()
    WATCHERS[watcher](look)
    assert notes
    assert all(notes)
    assert not is_traced()


@pytest.mark.parametrize("mode", [FakeTensorMode, lambda: FlopCounterMode(display=False)], ids=["fake", "flops"])
def test_modes_are_noticed(mode):
    with mode():
        assert is_traced()
        assert not can_read_values(ONE)
    assert can_read_values(ONE)


def test_a_compiler_is_noticed():
    compiled = torch.compile(lambda x: x + (1 if is_traced() else 5), backend="eager", fullgraph=True)
    assert compiled(ONE) == 2


class Exported(torch.nn.Module):
    """Says what it sees when it is traced."""

    def forward(self, x: Tensor) -> Tensor:
        """1 more where an export is noticed."""
        return x + (1 if is_exporting() else 5)


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_is_told_from_a_compiler(strict):
    assert torch.export.export(Exported(), (ONE,), strict=strict).module()(ONE) == 2
    assert torch.compile(Exported(), backend="eager", fullgraph=True)(ONE) == 6
    assert not is_exporting()


class Subclass(Tensor):
    """A tensor that is not torch's own."""


def test_numbers_of_others_are_not_read():
    assert is_plain_tensor(ONE)
    assert is_plain_tensor(torch.nn.Parameter(ONE))
    assert not is_plain_tensor(ONE.as_subclass(Subclass))
    assert not can_read_values(ONE.as_subclass(Subclass))
    assert not can_read_values(torch.ones(1, device="meta"))
