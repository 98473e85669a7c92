"""What the library adds to `import torch`, in fresh processes: alone, and with every public name loaded."""

import statistics
import subprocess
import sys

CODE = """
import time, torch
begin = time.perf_counter()
import regard
alone = time.perf_counter() - begin
for name in regard.__all__:
    getattr(regard, name)
print(alone, time.perf_counter() - begin)
"""
PROCESSES = 7


def run(device: str) -> list[dict]:
    """One row of seconds, minimum and median; none on a GPU, whose import is the same."""
    if device != "cpu":
        return []
    pairs = [_seconds() for _ in range(PROCESSES + 1)][1:]
    names = ("import regard", "every public name")
    times = dict(zip(names, zip(*pairs, strict=True), strict=True))
    return [{"what": name, "min": min(ts), "median": statistics.median(ts)} for name, ts in times.items()]


def _seconds() -> tuple[float, float]:
    printed = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True).stdout
    alone, everything = printed.split()
    return float(alone), float(everything)
