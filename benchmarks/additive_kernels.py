"""How close each kernel of additive attention comes to its own floor: `python -m benchmarks.additive_kernels FILE`.

The floor of a kernel is the largest of: its float32 instructions over the rate of those units, its reciprocals over
theirs, its matrix operations over the best rate that any large product reached, its bytes over that of a copy. A
ceiling is the best of several sizes and of many calls: what was reached once can be reached.
"""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import regard
from benchmarks.additive import drawn, gradients, settle
from benchmarks.measure import machine
from regard.backends.triton.additive.lift import smallest_rank

BATCH, TOKENS, HIDDEN, VALUE_DIM = 8, 4096, 128, 64
PAIRS = BATCH * TOKENS * TOKENS
TERMS = PAIRS * HIDDEN
TOKENS_OF_A_SIDE = BATCH * TOKENS * HIDDEN
# Instructions for one hidden unit of one pair, counted in the kernels' machine code; 128 lanes a multiprocessor and
# clock for float32, 16 for reciprocals.
LANES, SPECIAL_LANES = 128, 16
FLOAT_INSTRUCTIONS = {"score_tiles": 3.75, "token_gradients": 7.0 + 5.5}
RECIPROCALS = {"score_tiles": 0.25, "token_gradients": 0.5 + 0.5}

# Sizes of which the best rate is the ceiling: which one that is depends on the library's own kernels.
PRODUCTS = (4096, 6144, 8192, 12288, 16384)
COPIES = (2**28, 2**29, 2**30)
SHORTEST = 0.005  # milliseconds: what takes less is left out


def main(out: str) -> None:
    """Write times, counts and floors of the kernels of four calls."""
    ceilings = measured_ceilings()
    rows = []
    for title, tolerance, backward in (
        ("exact, forward", None, False),
        ("lifted, forward", 2.5e-3, False),
        ("exact, forward and backward", None, True),
        ("lifted, forward and backward", 2e-3, True),
    ):
        times, rank = kernel_times(tolerance, backward)
        for kernel, (milliseconds, launches) in times.items():
            floor, bound = floor_of(kernel, rank, backward, ceilings)
            known = {"call": title, "kernel": kernel, "ms": milliseconds, "launches": launches}
            rows.append({**known, "floor_ms": floor, "bound_by": bound})
    size = {"batch": BATCH, "tokens": TOKENS, "hidden": HIDDEN, "value_dim": VALUE_DIM}
    kept = {"device": "cuda", "machine": machine("cuda"), "size": size, "ceilings": ceilings, "rows": rows}
    Path(out).write_text(json.dumps(kept, indent=1) + "\n")
    for row in rows:
        floor = f"floor {row['floor_ms']:.3f} ({row['bound_by']})" if row["floor_ms"] else ""
        print(f"{row['call']:30} {row['kernel'][:44]:44} {row['ms']:.3f} ms x{row['launches']} {floor}")


def kernel_times(tolerance: float | None, backward: bool) -> tuple[dict[str, tuple[float, int]], int]:
    """Milliseconds and launches of each kernel of one call, the least of five; and the rank of its lift."""
    inputs, score = drawn(BATCH, TOKENS, HIDDEN, VALUE_DIM, "cuda", backward)
    settle(score, inputs)

    def call() -> None:
        with torch.set_grad_enabled(backward):
            output = regard.attend(*inputs, score, tolerance=tolerance)
            if backward:
                gradients(output, [*inputs, score.weight])
        torch.cuda.synchronize()

    call()
    runs = []
    for _ in range(5):
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            call()
        runs.append(
            summed((event.key, event.device_time_total / 1e3, event.count) for event in profiler.key_averages())
        )
    rank = smallest_rank(*score.reach.range, tolerance, backward) if tolerance else None
    return least(runs), rank or 0


def summed(events: Iterable[tuple[str, float, int]]) -> dict[str, tuple[float, int]]:
    """Milliseconds and launches of one call by kernel; the library's matrix products, of many names, are one."""
    found: dict[str, tuple[float, int]] = {}
    for key, milliseconds, count in events:
        name = "matrix product" if "nvjet" in key or "gemm" in key else key
        before = found.get(name, (0.0, 0))
        found[name] = before[0] + milliseconds, before[1] + count
    return {name: told for name, told in found.items() if told[0] > SHORTEST}


def least(runs: list[dict[str, tuple[float, int]]]) -> dict[str, tuple[float, int]]:
    """The shortest time of each kernel over several calls, each counted whole."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: min(run[name] for run in runs if name in run) for name in names}


def measured_ceilings() -> dict[str, float]:
    """Matrix operations and bytes a second, the best that was seen; multiprocessors and their clock."""
    products = [best_rate(2 * size**3, product_of(size)) for size in PRODUCTS]
    copies = [best_rate(2 * 4 * size, copy_of(size)) for size in COPIES]
    properties = torch.cuda.get_device_properties(0)
    return {
        "matrix_flops": max(products),
        "copied_bytes": max(copies),
        "multiprocessors": properties.multi_processor_count,
        "clock_after_products": torch.cuda.clock_rate() * 1e6,
    }


def product_of(size: int) -> Callable[[], object]:
    """A square product as the lift's are: float16 in, float32 out."""
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    return lambda: torch.mm(left, right, out_dtype=torch.float32)


def copy_of(size: int) -> Callable[[], object]:
    """A copy of so many float32 numbers, each read and written."""
    source = torch.randn(size, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def best_rate(work: float, call: Callable[[], object]) -> float:
    """Work a second in the shortest of many calls."""
    for _ in range(3):
        call()
    return work / min(milliseconds(call) for _ in range(30)) * 1e3


def milliseconds(call: Callable[[], object]) -> float:
    """One call by the GPU's clock."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def floor_of(kernel: str, rank: int, backward: bool, ceilings: dict[str, float]) -> tuple[float | None, str]:
    """Milliseconds below which a kernel cannot go, and what holds it there; None for the small ones of torch."""
    passes = 2 if backward else 1
    rate = ceilings["multiprocessors"] * ceilings["clock_after_products"]
    floors = {}
    if kernel in FLOAT_INSTRUCTIONS and not rank:  # a lifted call only looks for full blocks
        often = passes if kernel == "score_tiles" else 1
        floors["float32 instructions"] = often * FLOAT_INSTRUCTIONS[kernel] * TERMS / (rate * LANES)
        floors["reciprocals"] = often * RECIPROCALS[kernel] * TERMS / (rate * SPECIAL_LANES)
    if kernel == "matrix product":
        floors["matrix operations"] = (4 if backward else 1) * 2 * TERMS * rank / ceilings["matrix_flops"]
    moved = {
        "score_tiles": passes * 4 * PAIRS,
        "pool_scores": 4 * PAIRS,
        "score_gradients": (4 + (2 if rank else 4)) * PAIRS,
        "lift_tokens": passes * 2 * TOKENS_OF_A_SIDE * (2 * rank + 4),
        "feature_gradients": 2 * TOKENS_OF_A_SIDE * (4 * rank + 12),
    }
    if kernel in moved:
        floors["bytes"] = moved[kernel] / ceilings["copied_bytes"]
    if not floors:
        return None, ""
    bound = max(floors, key=lambda name: floors[name])
    return floors[bound] * 1e3, bound


if __name__ == "__main__":
    main(sys.argv[1])
