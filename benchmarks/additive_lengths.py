"""Additive attention against a compiled textbook form that has met several lengths.

torch.compile makes a program for the first length that it meets, and when it meets another one a program for every
length: this is what a caller with sentences of several lengths has, unless `dynamic=False` is asked for.
"""

import torch

from benchmarks.additive import COMPILED, TEXTBOOK, allowed, compared, compiled, drawn, gradients

# batch, tokens, hidden, value_dim: the lengths that a program meets, of which the last is timed.
MET = {
    "cpu": [(2, 128, 128, 64), (2, 256, 128, 64), (2, 512, 128, 64)],
    "cuda": [(8, 512, 128, 64), (8, 1024, 128, 64), (8, 4096, 128, 64)],
}


def run(device: str) -> list[dict]:
    """Rows for forward, and for forward and backward, against each textbook form."""
    rows = []
    *before, last = MET[device]
    for backward in (False, True):
        programs = {f"{name}{COMPILED} at several lengths": compiled(form) for name, form in TEXTBOOK.items()}
        for size in before:
            meet(programs, size, backward, device)
        for tolerance in allowed(device, last[1], backward):
            rows += compared(*last, backward, device, tolerance, programs, captured=False)
    return rows


def meet(programs: dict, size: tuple[int, int, int, int], backward: bool, device: str) -> None:
    """Call each program once at a size."""
    inputs, score = drawn(*size, device, backward)
    with torch.set_grad_enabled(backward):
        for program in programs.values():
            output = program(*inputs, score.weight)
            if backward:
                gradients(output, [*inputs, score.weight])
