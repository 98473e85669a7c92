"""Timing that can be believed on a shared machine: peers interleaved, the first pass dropped, noise noticed."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

PASSES = 9
SHORTEST_PASS = 0.02
LARGEST_DRIFT = 0.15
ATTEMPTS = 4

Call = Callable[[], object]


def compare(peers: dict[str, Call]) -> dict:
    """Time peers A, B, ... as A B ... A, pass after pass; the first peer's two medians tell how calm the machine was.

    Returns seconds per call for each peer: minimum and median over the passes. The whole is repeated while the two
    medians of the first peer differ by more than LARGEST_DRIFT, and says so if they still do at the end.
    """
    for call in peers.values():
        call()
    repeats = {name: _repeats(call) for name, call in peers.items()}
    first = next(iter(peers))
    for attempt in range(1, ATTEMPTS + 1):
        times: dict[str, list[float]] = {name: [] for name in peers}
        again: list[float] = []
        for _ in range(PASSES + 1):
            for name, call in peers.items():
                times[name].append(_seconds(call, repeats[name]))
            again.append(_seconds(peers[first], repeats[first]))
        medians = statistics.median(times[first][1:]), statistics.median(again[1:])
        drift = abs(medians[0] - medians[1]) / min(medians)
        if drift <= LARGEST_DRIFT:
            break
    result = {name: {"min": min(ts[1:]), "median": statistics.median(ts[1:])} for name, ts in times.items()}
    return {"seconds": result, "drift": drift, "attempts": attempt, "passes": PASSES, "load": os.getloadavg()[0]}


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative L2 error against float64."""
    return float((result.double() - exact).norm() / exact.norm())


def machine() -> dict:
    """The facts without which a time means nothing."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "system": platform.system(),
    }


def _repeats(call: Call) -> int:
    """How many calls make a pass long enough for the clock."""
    count = 1
    while (passed := _seconds(call, count) * count) < SHORTEST_PASS:
        count = max(count * 2, int(count * SHORTEST_PASS / max(passed, 1e-6)))
    return count


def _seconds(call: Call, repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def _processor() -> str:
    names = Path("/proc/cpuinfo")
    if names.exists():
        for line in names.read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return f"{platform.machine()}, {os.cpu_count()} cores"
