"""Memory stays linear in tokens in both directions, for every kind of score; measured in a process of its own."""

import json
import subprocess
import sys

import pytest

# Prints the peak memory above the inputs, in MiB, after forward and backward at each size.
SCRIPT = """
import json, resource, sys
import torch, regard

torch.set_num_threads(1)
name, *sizes = json.loads(sys.argv[1])
score = {
    "additive": regard.scores.Additive(64, 64, 64),
    "gaussian": regard.scores.Gaussian(8.0, learnable=True),
    "callable": lambda q, k: (q @ k.mT).tanh(),
}.get(name, name)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10

def pool(query, key, value):
    output = regard.attend(query, key, value, score, backend="blocked")
    output.square().sum().backward()

pool(*(torch.randn(1, 64, 64, requires_grad=True) for _ in range(3)))
peaks = []
for size in sizes:
    inputs = [torch.randn(1, size, 64, requires_grad=True) for _ in range(3)]
    before = peak()
    pool(*inputs)
    peaks.append(peak() - before)
print(json.dumps(peaks))
"""


def peaks(score, *sizes):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([score, *sizes])], capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout)


def test_additive_attention_on_8192_tokens_stays_under_1_5_gib():
    """The textbook form needs over 32 GiB."""
    (above,) = peaks("additive", 8192)
    assert above < 1.5 * 1024


@pytest.mark.parametrize("score", ["scaled_dot", "gaussian", "callable"])
def test_no_score_holds_a_matrix_of_queries_and_keys(score):
    """One such matrix of 4096 x 4096 would take 64 MiB, and the textbook form holds several."""
    (above,) = peaks(score, 4096)
    assert above < 64


def test_twice_the_tokens_take_about_twice_the_memory():
    small, large = peaks("additive", 2048)[0], peaks("additive", 4096)[0]
    assert large < 2.5 * small
