"""Timing that can be believed on a shared machine: peers interleaved, the first pass dropped, noise noticed."""

import math
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

PASSES = 11
SHORTEST_PASS = 0.02
LARGEST_DRIFT = 0.15
ATTEMPTS = 4

Call = Callable[[], object]
Timer = Callable[[int], float]
"""Calls something that many times and returns the seconds of one call."""


def compare(peers: dict[str, Call]) -> dict:
    """Time peers A, B, ... as A B ... A, pass after pass; the first peer's two medians tell how calm the machine was.

    Returns seconds per call for each peer, minimum and median over the passes, and how many times faster than the
    first peer each one is, as the median over the passes. The whole is repeated while the two
    medians of the first peer differ by more than LARGEST_DRIFT, and says so if they still do at the end.
    """
    return compare_timers({name: partial(seconds, call) for name, call in peers.items()})


def compare_timers(peers: dict[str, Timer]) -> dict:
    """Return what `compare` returns, for peers that time themselves, such as programs in other processes."""
    for timer in peers.values():
        timer(1)
    repeats = {name: _repeats(timer) for name, timer in peers.items()}
    drift, attempts, times, around = math.inf, 0, {}, []
    while drift > LARGEST_DRIFT and attempts < ATTEMPTS:
        attempts += 1
        times, around, drift = _passes(peers, repeats)
    result = {name: {"min": min(ts), "median": statistics.median(ts)} for name, ts in times.items()}
    # Each pass is compared with the first peer's two turns around it: what drifts over the passes cancels.
    ratios = {name: statistics.median(a / b for a, b in zip(around, ts, strict=True)) for name, ts in times.items()}
    load = os.getloadavg()[0]
    return {"seconds": result, "ratio": ratios, "drift": drift, "attempts": attempts, "passes": PASSES, "load": load}


def _passes(peers: dict[str, Timer], repeats: dict[str, int]) -> tuple[dict[str, list[float]], list[float], float]:
    """Seconds per call of each pass but the first, the mean of the first peer's two turns, and their drift."""
    times: dict[str, list[float]] = {name: [] for name in peers}
    first, again = next(iter(peers)), []
    for _ in range(PASSES + 1):
        for name, timer in peers.items():
            times[name].append(timer(repeats[name]))
        again.append(peers[first](repeats[first]))
    medians = statistics.median(times[first][1:]), statistics.median(again[1:])
    around = [(before + after) / 2 for before, after in zip(times[first], again, strict=True)]
    drift = abs(medians[0] - medians[1]) / min(medians)
    return {name: ts[1:] for name, ts in times.items()}, around[1:], drift


def recorded(call: Call) -> Call:
    """The replay of a CUDA graph of a call: a GPU's own time, whatever the host is busy with."""
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm), warnings.catch_warnings(action="ignore"):
        for _ in range(3):
            call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
    return graph.replay


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative L2 error against float64."""
    return float((result.detach().double() - exact.detach()).norm() / exact.detach().norm())


def machine(device: str) -> dict:
    """The facts without which a time means nothing."""
    return {
        "processor": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "system": platform.system(),
    }


def _repeats(timer: Timer) -> int:
    """How many calls make a pass long enough for the clock."""
    count = 1
    while (passed := timer(count) * count) < SHORTEST_PASS:
        count = max(count * 2, int(count * SHORTEST_PASS / max(passed, 1e-6)))
    return count


def seconds(call: Call, repeats: int) -> float:
    """Return the seconds of one call, as the mean of several."""
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats


def _processor() -> str:
    names = Path("/proc/cpuinfo")
    if names.exists():
        for line in names.read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return f"{platform.machine()}, {os.cpu_count()} cores"
