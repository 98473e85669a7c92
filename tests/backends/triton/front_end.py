"""Run every Triton kernel through the front end of the compiler, for a GPU that need not be there.

`test_front_end` runs this program outside of Triton's interpreter, which accepts more than the compiler: for example, a
variable may change its shape in a loop. Nothing is computed; the program prints the names of the kernels.
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
from regard.backends import triton as backend
from regard.backends.triton import additive, distance
from regard.backends.triton.additive import lifted  # noqa: F401 - before INTERPRETED is replaced, which it copies

TARGET = GPUTarget("cuda", 90, 32)


class NoGPU:
    """The part of a driver that Triton uses before it compiles."""

    def get_current_target(self):
        return TARGET

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


def front_end(source, target, options, **_):
    """Replace `triton.compiler.compile`: make the intermediate representation, and no machine code."""
    compiler, context = make_backend(target), ir.context()
    options = compiler.parse_options({**options, **source.parse_options()})
    ir.load_dialects(context)
    compiler.load_dialects(context)
    source.make_ir(target, options, compiler.get_codegen_implementation(options), compiler.get_module_map(), context)


def without_launch(seen):
    """Return a replacement of `JITFunction.run` that compiles only, and adds the names of kernels to `seen`."""
    run = JITFunction.run

    def compile_only(self, *args, grid, warmup, **settings):
        seen.add(self.__name__)
        return run(self, *args, grid=grid, warmup=True, **settings)

    return compile_only


def run_both_passes(score, dim, value_dim, dtype=torch.float32, **settings):
    tokens = [torch.randn(2, 40, width).to(dtype).requires_grad_() for width in (dim, dim, value_dim)]
    regard.attend(*tokens, score, backend="triton", **settings).sum().backward()


def run_all():
    """Call the kernels of every kind of radial kernel and size, with all optional arguments and without.

    Every pair of radial kernel, size and settings occurs; all combinations of the three would take twice as long.
    """
    mask = Mask.causal() & Mask.lengths(torch.tensor([30, 40]))
    for at, (dtype, settings) in enumerate(
        ((torch.float32, {}), (torch.bfloat16, {"mask": mask, "bias": torch.randn(1, 40)}))
    ):
        for row, score in enumerate(("gaussian", "laplacian", "tricube", "boxcar")):
            for column, (dim, value_dim) in enumerate(((3, 2), (3, 19), (19, 3), (40, 150))):
                if (row + column) % 2 == at:
                    run_both_passes(score, dim, value_dim, dtype, **settings)
        score = scores.Additive(5, 5, 24).to(dtype)
        for value_dim, tolerance in ((7, None), (7, 1e-2), (150, 1e-2)):
            run_both_passes(score, 5, value_dim, dtype, tolerance=tolerance, **settings)
        run_both_passes(score, 5, 7, dtype, dropout=0.1, **settings)


def main():
    """Run all calls as long ones, and then as short ones."""
    seen = set()
    triton.runtime.driver.set_active(NoGPU())
    with (
        mock.patch.object(JITFunction, "run", without_launch(seen)),
        mock.patch("triton.compiler.compile", front_end),
        mock.patch.object(backend, "INTERPRETED", True),
        mock.patch.multiple(additive, MIN_LIFT_WORK=0, MIN_LIFT_TOKENS=0),
    ):
        with mock.patch.object(additive, "MAX_SHORT_KEYS", 0), mock.patch.object(distance, "MAX_SHORT_PAIRS", 0):
            run_all()
        run_all()
    print("\n".join(sorted(seen)))


if __name__ == "__main__":
    main()
