"""Memory stays linear in tokens in both directions, for every kind of score; measured in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu  # the memory of a process

# Prints by how much forward and backward raise the peak memory of the process, in MiB, one call after the other.
# The peak is the kernel's, reset before each call: the one that getrusage tells begins with the parent's.
SCRIPT = """
import json, re, sys
from pathlib import Path
import torch, regard

torch.set_num_threads(1)
torch.manual_seed(0)
scores = {
    "additive": regard.scores.Additive(64, 64, 64),
    "gaussian": regard.scores.Gaussian(8.0, learnable=True),
    "callable": lambda q, k: (q @ k.mT).tanh(),
}

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 2**10

def pool(backend, tokens, name):
    inputs = [torch.randn(1, tokens, 64, requires_grad=True) for _ in range(3)]
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    output = regard.attend(*inputs, scores.get(name, name), backend=backend)
    output.square().sum().backward()
    return peak() - before

calls = json.loads(sys.argv[1])
for backend, _, name in calls:
    pool(backend, 1024, name)  # what is loaded on the first call in several blocks is not counted
print(json.dumps([pool(*call) for call in calls]))
"""


# What is freed goes back to the system at once: so the peak is what the call holds, not what the C library hoards.
ENVIRONMENT = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}


CALLS = [
    ("blocked", 8192, "additive"),
    ("blocked", 4096, "scaled_dot"),
    ("blocked", 4096, "gaussian"),
    ("blocked", 4096, "callable"),
    ("reference", 4096, "scaled_dot"),
]


@pytest.fixture(scope="module")
def above():
    """By how much each call raises the peak, in MiB; one process for all, because its start takes seconds."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(CALLS)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout
    return dict(zip(CALLS, json.loads(printed), strict=True))


def test_additive_attention_on_8192_tokens_stays_under_1_5_gib(above):
    """The textbook form needs over 32 GiB; here it is less than one matrix of queries and keys, 256 MiB."""
    assert 0 < above["blocked", 8192, "additive"] < 256


@pytest.mark.parametrize("score", ["scaled_dot", "gaussian", "callable"])
def test_no_score_holds_a_matrix_of_queries_and_keys(above, score):
    """One such matrix of 4096 x 4096 would take 64 MiB, and the textbook form holds several."""
    assert 0 < above["blocked", 4096, score] < 64


def test_the_measurement_sees_a_matrix_where_there_is_one(above):
    assert above["reference", 4096, "scaled_dot"] > 2 * 64
