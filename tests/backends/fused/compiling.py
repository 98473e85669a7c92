"""Make the intermediate form of every fused kernel for a GPU that need not be there: the front end is strict.

Run as a program, by `test_compiling`, outside of Triton's interpreter, which takes more than the compiler does: a name,
for example, may change its shape there. Nothing is computed; the names of the kernels are printed.
"""

from unittest import mock

import torch
import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction

import regard
from regard import Mask, scores
from regard.backends import fused
from regard.backends.fused.additive import plan

TARGET = GPUTarget("cuda", 90, 32)


class NoGPU:
    """What Triton asks of a driver before it compiles."""

    def get_current_target(self):
        return TARGET

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


def front_end(source, target, options, **_):
    """In place of `triton.compiler.compile`: no machine code is made."""
    backend, context = make_backend(target), ir.context()
    options = backend.parse_options({**options, **source.parse_options()})
    ir.load_dialects(context)
    backend.load_dialects(context)
    source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)


def without_launch(seen):
    """In place of `JITFunction.run`."""
    run = JITFunction.run

    def warm(self, *args, grid, warmup, **settings):
        seen.add(self.__name__)
        return run(self, *args, grid=grid, warmup=True, **settings)

    return warm


def both_ways(score, dim, value_dim, dtype=torch.float32, **settings):
    tokens = [torch.randn(2, 40, width).to(dtype).requires_grad_() for width in (dim, dim, value_dim)]
    regard.attend(*tokens, score, backend="triton", **settings).sum().backward()


def calls():
    """The kernels of every kind of link and size, with everything that they know and without.

    Every two of link, size and settings meet; all three would take twice as long.
    """
    mask = Mask.causal() & Mask.lengths(torch.tensor([30, 40]))
    for at, (dtype, settings) in enumerate(
        ((torch.float32, {}), (torch.bfloat16, {"mask": mask, "bias": torch.randn(1, 40)}))
    ):
        for row, score in enumerate(("gaussian", "laplacian", "tricube", "boxcar")):
            for column, (dim, value_dim) in enumerate(((3, 2), (3, 19), (19, 3), (40, 150))):
                if (row + column) % 2 == at:
                    both_ways(score, dim, value_dim, dtype, **settings)
        additive = scores.Additive(5, 5, 24).to(dtype)
        for value_dim, tolerance in ((7, None), (7, 1e-2), (150, 1e-2)):
            both_ways(additive, 5, value_dim, dtype, tolerance=tolerance, **settings)
        both_ways(additive, 5, 7, dtype, dropout=0.1, **settings)


def main():
    seen = set()
    triton.runtime.driver.set_active(NoGPU())
    with (
        mock.patch.object(JITFunction, "run", without_launch(seen)),
        mock.patch("triton.compiler.compile", front_end),
        mock.patch.object(fused, "INTERPRETED", True),
        mock.patch.multiple(plan, LEAST_WORK=0, LEAST_TOKENS=0),
    ):
        calls()
    print("\n".join(sorted(seen)))


if __name__ == "__main__":
    main()
