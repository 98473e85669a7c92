"""Memory stays linear in tokens in both directions, for every kind of score; measured in a process of its own."""

import json
import os
import subprocess
import sys

# Prints by how much forward and backward raise the peak memory of the process, in MiB, one score after the other.
# The peak is the kernel's, reset before each call: the one that getrusage tells begins with the parent's.
SCRIPT = """
import json, re, sys
from pathlib import Path
import torch, regard

torch.set_num_threads(1)
torch.manual_seed(0)
backend, size, *names = json.loads(sys.argv[1])
scores = {
    "additive": regard.scores.Additive(64, 64, 64),
    "gaussian": regard.scores.Gaussian(8.0, learnable=True),
    "callable": lambda q, k: (q @ k.mT).tanh(),
}

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 2**10

def pool(tokens, name):
    inputs = [torch.randn(1, tokens, 64, requires_grad=True) for _ in range(3)]
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    output = regard.attend(*inputs, scores.get(name, name), backend=backend)
    output.square().sum().backward()
    return peak() - before

for name in names:
    pool(1024, name)  # what is loaded on the first call in several blocks is not counted
print(json.dumps({name: pool(size, name) for name in names}))
"""


# What is freed goes back to the system at once: so the peak is what the call holds, not what the C library hoards.
ENVIRONMENT = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}


def peaks(backend, size, *scores):
    command = [sys.executable, "-c", SCRIPT, json.dumps([backend, size, *scores])]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout
    return json.loads(printed)


def test_additive_attention_on_8192_tokens_stays_under_1_5_gib():
    """The textbook form needs over 32 GiB; here it is less than one matrix of queries and keys, 256 MiB."""
    above = peaks("blocked", 8192, "additive")["additive"]
    assert 0 < above < 256


def test_no_score_holds_a_matrix_of_queries_and_keys():
    """One such matrix of 4096 x 4096 would take 64 MiB, and the textbook form holds several."""
    above = peaks("blocked", 4096, "scaled_dot", "gaussian", "callable")
    assert {name: mib for name, mib in above.items() if not 0 < mib < 64} == {}
    assert len(above) == 3


def test_the_measurement_sees_a_matrix_where_there_is_one():
    assert peaks("reference", 4096, "scaled_dot")["scaled_dot"] > 2 * 64
