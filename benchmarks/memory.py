"""Peak memory of additive attention over long inputs, forward and backward, in a process of its own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import torch

import regard

SIZES = [(2048, 64), (4096, 64), (8192, 64)]


def run(device: str) -> list[dict]:
    """Rows of (tokens, hidden): bytes above what the process held when its inputs were ready."""
    if device != "cpu":
        return []
    return [_row(*size) for size in SIZES]


def _row(tokens: int, hidden: int) -> dict:
    command = [sys.executable, "-m", "benchmarks.memory", str(tokens), str(hidden)]
    peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    textbook = 2 * tokens * tokens * hidden * 4
    return {"tokens": tokens, "hidden": hidden, **peak, "textbook_bytes_at_least": textbook}


def _measure(tokens: int, hidden: int) -> dict:
    score = regard.scores.Additive(hidden, hidden, hidden)
    # One small call first: what libraries allocate once for themselves is not the operator's memory.
    small = torch.randn(1, 600, hidden, requires_grad=True)
    regard.attend(small, small, small, score, backend="blocked").sum().backward()
    x = torch.randn(1, tokens, hidden, requires_grad=True)
    clear_peak()
    before = peak()
    regard.attend(x, x, x, score, backend="blocked").sum().backward()
    return {"peak_bytes": peak() - before}


def clear_peak() -> None:
    """Let the mark of the most memory begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """The kernel's own mark of the most memory held: the one that getrusage tells begins with the parent's."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]), int(sys.argv[2]))))
