"""The most bytes that a function holds at once beyond what was there before, as the allocator counts them."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile

STDERR = 2


def peak_bytes(function: Callable[[], object], device: torch.device) -> int:
    """Run a function; the peak of what it allocates, whoever asked for it: tensors, saved ones, buffers of operators.

    On a GPU the allocator keeps the mark. On a CPU torch's profiler tells of every block that comes and goes; blocks
    that were there before are not counted, nor is their end.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    profiler = profile(profile_memory=True)
    with _quiet(), profiler:
        function()
    results: Any = profiler.kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events), default=0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it nothing comes out of stderr: the profiler's library greets there, and tells when old blocks end."""
    sys.stderr.flush()
    kept = os.dup(STDERR)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), STDERR)
    try:
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
