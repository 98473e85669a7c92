"""Freed memory of CPU calls is kept: the second training step waits for few new pages."""

import resource
import subprocess
import sys

import pytest

STEPS = """
import resource, torch, regard
torch.set_num_threads(1)
score = regard.scores.Additive.of_projected(256)
leaves = [torch.randn(32, 20, 256, requires_grad=True) for _ in range(3)]
def step():
    torch.autograd.grad(regard.attend(*leaves, score).sum(), leaves)
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.cpu
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc of glibc")
def test_later_steps_wait_for_few_new_pages():
    faults = int(subprocess.run([sys.executable, "-c", STEPS], check=True, capture_output=True, text=True).stdout)
    pages_of_a_buffer = 2**23 // resource.getpagesize()
    assert faults < pages_of_a_buffer, "each step would write at least two buffers of 8 MiB anew"
