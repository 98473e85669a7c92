"""Memory that must not grow: of a process that calls attend again and again, and of one that answers requests."""

import gc
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.stress.readers import FIT, ORIGIN, PORT
from tests.translation.models import random_model, save_model

import regard
from regard.studio.app import build
from regard.studio.models.shelf import Shelf

CALLS, REQUESTS, WARM = 10_000, 1_000, 0.2
ALLOWED = 8 * 2**20  # bytes between the end of the first fifth and the last call: what an allocator keeps at random


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grown(call: Callable[[int], object], times: int, seconds: float) -> dict[str, int]:
    """How many calls were made, and by how many bytes the process grew after the first fifth of them."""
    begin, before, done = time.perf_counter(), 0, 0
    for done in range(1, times + 1):
        call(done)
        if not before and (done >= WARM * times or time.perf_counter() - begin > WARM * seconds):
            gc.collect()
            before = resident()
        if time.perf_counter() - begin > seconds:
            break
    gc.collect()
    return {"calls": done, "grown": resident() - before}


def run(share: float, seconds: float, seed: int) -> dict[str, Any]:
    """Both, for half of the time each: `share` of the calls, but never so few that a fifth warms nothing."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    found = {"attend": grown(_attend, max(500, round(share * CALLS)), seconds / 2)}
    with warnings.catch_warnings(action="ignore"):
        from starlette.testclient import TestClient
    with TemporaryDirectory() as place:
        folder = save_model(Path(place) / "model", random_model())
        with TestClient(build(Shelf.of_folder(folder), PORT), base_url=ORIGIN, headers={"origin": ORIGIN}) as client:
            found["studio"] = grown(
                lambda number: client.post(
                    "/api/regression/fit", json=FIT | {"query": number / REQUESTS}
                ).raise_for_status(),
                max(100, round(share * REQUESTS)),
                seconds / 2,
            )
    lost = [f"{name}: {one}" for name, one in found.items() if one["grown"] > ALLOWED]
    counts = {"calls of attend": found["attend"]["calls"], "requests": found["studio"]["calls"]}
    return {"counts": counts, "grown": {name: one["grown"] for name, one in found.items()}, "lost": lost}


def _attend(number: int) -> None:
    """Every kind of score and backend in turn, sizes that change, with gradients."""
    score, backend = (("scaled_dot", "torch"), ("gaussian", "blocked"), ("biweight", "reference"))[number % 3]
    token = torch.randn(2, 16 + number % 17, 5, requires_grad=True)
    regard.attend(token, token, token, score, regard.Mask.causal(align="top_left"), backend=backend).sum().backward()
