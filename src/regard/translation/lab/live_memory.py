"""The most bytes that a function holds at once beyond what was there before, as the allocator counts them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch.autograd.profiler import profile

LOG_LEVEL = "KINETO_LOG_LEVEL"


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
    """Within it the profiler's library does not announce on stderr that it begins and ends."""
    before = os.environ.get(LOG_LEVEL)
    os.environ[LOG_LEVEL] = "99"
    try:
        yield
    finally:
        if before is None:
            del os.environ[LOG_LEVEL]
        else:
            os.environ[LOG_LEVEL] = before
