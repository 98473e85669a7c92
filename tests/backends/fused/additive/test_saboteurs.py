"""Kernels broken on purpose: every break must turn the judge's verdict, or the judge cannot be trusted.

A saboteur is one line of a kernel changed, in a copy that takes its place and that of all kernels which use it; or one
function of the host. A line that is no longer there fails, so that none goes idle unseen.
"""

import importlib
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.backends.fused.additive.judge import Call, disagreements, drawn
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from regard import Mask
from regard.backends.fused import additive
from regard.backends.fused.additive import backward, call, forward, lifted_backward, sides, tables

pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.usefixtures("small_slabs")]

SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in Path(additive.__file__).parent.glob("*.py")}
KERNEL_FILES = {name: text for name, text in SOURCES.items() if "@triton.jit" in text}
HOSTS = (sides, forward, backward, lifted_backward)
NUMBERS = count()


@pytest.fixture(autouse=True)
def _many_strays(monkeypatch):
    """A block may have 16 among its 64 activations."""
    monkeypatch.setattr(tables, "STRAY_SHARE", 4)


class Saboteur(NamedTuple):
    """In the kernels of a file, `old` is replaced by `new`; `case` sees it."""

    file: str
    old: str
    new: str
    case: str = "plain"

    def __str__(self) -> str:
        """A name for a test."""
        return f"{self.file}: {self.old} -> {self.new}"

    def strike(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        """Write the kernels of the file anew, broken, and those that use them, in the place of the sound ones."""
        package = f"broken_{next(NUMBERS)}"
        (folder / package).mkdir()
        assert self.old in KERNEL_FILES[self.file], f"this saboteur has no line to change: {self}"
        written = users_of(self.file)
        for name in written:
            text = KERNEL_FILES[name].replace(self.old, self.new) if name == self.file else KERNEL_FILES[name]
            for other in written:
                text = text.replace(f"{additive.__name__}.{other} ", f"{package}.{other} ")
            (folder / package / f"{name}.py").write_text(text, encoding="utf-8")
        patch.syspath_prepend(folder)
        for host in HOSTS:
            for name, kernel in list(vars(host).items()):
                if isinstance(kernel, InterpretedFunction | JITFunction):
                    home = kernel.fn.__module__.rpartition(".")[-1]
                    if home in written:
                        patch.setattr(host, name, getattr(importlib.import_module(f"{package}.{home}"), name))


def users_of(file: str) -> set[str]:
    """The file itself, and the files whose kernels use what is in it."""
    found = {file}
    while (
        more := {name for name, text in KERNEL_FILES.items() if any(f".{used} import" in text for used in found)}
        - found
    ):
        found |= more
    return found


@cache
def case(name: str) -> Call:
    """A call with several tiles, slabs and a ragged end; `strays` has some on either side, `dense` blocks of them."""
    settings = {
        "plain": {
            "mask": Mask.causal(align="lower_right") & Mask.keys(torch.arange(19) != 4),
            "bias": torch.randn(17, 19),
        },
        "near": {"spread": 0.3},
        "rising": {"spread": 0.3, "bias": torch.linspace(0, 3, 19).repeat(17, 1)},  # every row's largest score is late
        "capped": {"spread": 12.0},
        "matrix": {"mask": Mask.keep(torch.rand(17, 19) < 0.6)},
        "lifted": {"spread": 0.6, "tolerance": 5e-3, "mask": Mask.keys(torch.arange(19) != 4)},
    }
    drew = drawn(17, 19, value_dim=1, **settings["lifted" if name in ("strays", "dense") else name])
    if name in ("strays", "dense"):
        query, key = drew.query.clamp(-0.9, 0.9), drew.key.clamp(-0.9, 0.9)
        # Strays of one unit on either side lie across the middle, where what they lack is largest.
        query[3:17:2, 0], query[16, 1], key[2:18:2, 0], key[18, 1] = 3.0, -2.5, -1.3, 1.4
        if name == "dense":
            query[:8], key[:8] = 2.0, -2.0
        drew = drew._replace(query=query, key=key, reach=(1.0, 1.0), tolerance=2e-3)
    return drew


@cache
def is_sound(name: str) -> bool:
    """Whether the judge is content with the kernels as they are."""
    return disagreements(case(name)) == []


KERNELS = [
    # The online softmax, and the end of it.
    Saboteur("pool", "total = total * shrink +", "total = total +", "rising"),
    Saboteur("pool", "pooled * shrink[:, None] + 2.0", "pooled + 2.0", "rising"),
    Saboteur("pool", "range(begin, end, BN)", "range(begin, end - BN, BN)"),
    # Masks, bias, padding.
    Saboteur("finish", "allows(n[None, :] - m[:, None]", "allows(n[None, :] + 1 - m[:, None]"),
    Saboteur("finish", "allowed[4]\n", "allowed[4] + 1\n", "matrix"),
    Saboteur("finish", "n.to(tl.int64)[None, :] * bias[4]", "n.to(tl.int64)[None, :] * 0"),
    Saboteur("finish", "real = n < keys", "real = n <= keys", "near"),
    # The formulas.
    Saboteur("pairs", "n01 * d23 + n23 * d01", "n01 * d23 + n23"),
    Saboteur("pairs", "tl.minimum(a[:, None] * b[None, :] + 1.0, CAP)", "a[:, None] * b[None, :] + 1.0", "capped"),
    Saboteur("pairs", "result = r - r * r", "result = r"),
    Saboteur("pairs", "result = 1.0 - a * a", "result = 1.0 - 0 * a", "near"),
    Saboteur("scores", "elif far + near <= PLAIN_REACH", "elif far + near <= 9 * PLAIN_REACH", "capped"),
    # The backward pass.
    Saboteur("cotangents", "product - change", "product + change"),
    Saboteur("cotangents", "((268 - exponent)", "((283 - exponent)", "lifted"),
    Saboteur("grade", "(change - tl.load(means", "(change + tl.load(means"),
    Saboteur("grade", "part_rows, rows), BM)", "part_rows, rows - BM), BM)"),
    Saboteur("pulls", "total += tl.load(grad", "total = tl.load(grad"),
    Saboteur("pulls", "total *= tl.load(weight + u) * shrink", "total *= shrink"),
    # The lift.
    Saboteur("scores", "if own + tl.load(others + block) > 0", "if own > 0", "dense"),
    Saboteur("features", "(own + single) * w", "own * w", "lifted"),
    Saboteur("features", "tl.where(kept, found, 0.0)", "found", "dense"),
    Saboteur(
        "pulls", "given = tl.where(own_flagged == 0, tl.sum(patched, 1), 0.0)", "given = tl.sum(patched, 1)", "dense"
    ),
    # What is beyond the lift's range.
    Saboteur("strays", "gap = tl.where(is_inside(b, OTHER_REACH), gap, 0.0)", "gap += 0.0", "strays"),
    Saboteur("strays", "lacking += tl.load(weight + unit) * gap", "lacking += gap", "strays"),
    Saboteur("strays", "lacking * scale", "lacking", "strays"),
    Saboteur("strays", "real &= is_inside(b, OTHER_REACH)", "real &= b == b", "strays"),
    Saboteur("strays", "range(other_number)", "range(other_number - 1)", "strays"),
    Saboteur("strays", "range(own_number)", "range(own_number - 1)", "strays"),
    Saboteur("strays", "values += change", "values -= change", "strays"),
    Saboteur("strays", "of_weight += change", "of_weight -= change", "strays"),
    Saboteur("strays", "is_lifted(flags, t, count, BLOCK)[:, None] & ", "", "dense"),
    Saboteur("strays", "mask=token < count, other=1) == 0", "mask=token < count, other=2) < 2", "dense"),
]


@pytest.mark.parametrize("saboteur", KERNELS, ids=str)
def test_a_broken_kernel_is_caught(saboteur, monkeypatch, tmp_path):
    assert is_sound(saboteur.case), "the sound kernels disagree: nothing can be learnt"
    saboteur.strike(monkeypatch, tmp_path)
    assert disagreements(case(saboteur.case)) != []


def without_the_last(slabs):
    return lambda self: list(slabs(self))[:-1]


HOST = {
    "the last slab is left out": (call.Call, "slabs", without_the_last(call.Call.slabs), "plain"),
    "keys lose what they say alone": (forward, "key_bias_of", lambda made, both: made.key_bias, "lifted"),
    "hidden keys are seen": (forward, "key_bias_of", lambda made, both: None, "plain"),
    "the bias learns nothing": (backward, "_add_bias", lambda *given: None, "plain"),
}


@pytest.mark.parametrize("name", HOST)
def test_a_broken_host_is_caught(name, monkeypatch):
    owner, function, broken, seen_by = HOST[name]
    assert is_sound(seen_by), "the sound kernels disagree: nothing can be learnt"
    monkeypatch.setattr(owner, function, broken)
    assert disagreements(case(seen_by)) != []


def test_a_copy_that_is_not_broken_is_as_good(monkeypatch, tmp_path):
    """So that what is caught is the break, not the copying."""
    Saboteur("finish", "LOG2E", "LOG2E").strike(monkeypatch, tmp_path)
    assert forward.pool_slab.fn.__module__.startswith("broken_")
    assert backward.grade_slab.fn.__module__.startswith("broken_")
    assert not forward.exact_scores.fn.__module__.startswith("broken_")
    assert disagreements(case("near")) == []
