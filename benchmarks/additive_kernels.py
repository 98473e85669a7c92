"""How close each kernel of additive attention comes to its own floor: `python -m benchmarks.additive_kernels FILE`.

The floor of a kernel is the largest of: its float32 instructions over the rate of those units, its reciprocals over
theirs, its matrix operations over the measured rate of a large product, its bytes over the measured rate of a copy.
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import regard
from benchmarks.additive import drawn, gradients, settle
from benchmarks.measure import machine
from regard.backends.fused.additive.lift import lift_for

BATCH, TOKENS, HIDDEN, VALUE_DIM = 8, 4096, 128, 64
PAIRS = BATCH * TOKENS * TOKENS
TERMS = PAIRS * HIDDEN
TOKENS_OF_A_SIDE = BATCH * TOKENS * HIDDEN
# Instructions for one hidden unit of one pair, counted in the kernels' machine code; 128 lanes a multiprocessor and
# clock for float32, 16 for reciprocals.
LANES, SPECIAL_LANES = 128, 16
FLOAT_INSTRUCTIONS = {"exact_scores": 3.75, "pull_tokens": 7.0 + 5.5}
RECIPROCALS = {"exact_scores": 0.25, "pull_tokens": 0.5 + 0.5}


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
    """Milliseconds and launches of each kernel of one call, the least of three; and the rank of its lift."""
    inputs, score = drawn(BATCH, TOKENS, HIDDEN, VALUE_DIM, "cuda", backward)
    settle(score, inputs)

    def call() -> None:
        with torch.set_grad_enabled(backward):
            output = regard.attend(*inputs, score, tolerance=tolerance)
            if backward:
                gradients(output, [*inputs, score.weight])
        torch.cuda.synchronize()

    call()
    found: dict[str, tuple[float, int]] = {}
    for _ in range(3):
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            call()
        for event in profiler.key_averages():
            milliseconds = event.device_time_total / 1e3
            if milliseconds > 0.005:
                name = "matrix product" if "nvjet" in event.key or "gemm" in event.key else event.key
                found[name] = min(found.get(name, (milliseconds, event.count)), (milliseconds, event.count))
    products = [event for event in profiler.key_averages() if "nvjet" in event.key or "gemm" in event.key]
    if products:
        found["matrix product"] = sum(e.device_time_total for e in products) / 1e3, sum(e.count for e in products)
    lift = lift_for(*score.reach.range, tolerance, backward) if tolerance else None
    return found, lift.rank if lift else 0


def measured_ceilings() -> dict[str, float]:
    """Matrix operations, float32 instructions and bytes a second."""
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    source = torch.randn(2**30, device="cuda")
    target = torch.empty_like(source)
    product = milliseconds(lambda: torch.mm(left, right, out_dtype=torch.float32))
    copy = milliseconds(lambda: target.copy_(source))
    properties = torch.cuda.get_device_properties(0)
    clock = torch.cuda.clock_rate() * 1e6
    return {
        "matrix_flops": 2 * 8192**3 / product * 1e3,
        "copied_bytes": 2 * 4 * 2**30 / copy * 1e3,
        "multiprocessors": properties.multi_processor_count,
        "clock_after_products": clock,
    }


def milliseconds(call: Callable[[], object]) -> float:
    """The median of ten calls, by the GPU's clock."""
    for _ in range(3):
        call()
    times = []
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def floor_of(kernel: str, rank: int, backward: bool, ceilings: dict[str, float]) -> tuple[float | None, str]:
    """Milliseconds below which a kernel cannot go, and what holds it there; None for the small ones of torch."""
    passes = 2 if backward else 1
    rate = ceilings["multiprocessors"] * ceilings["clock_after_products"]
    floors = {}
    if kernel in FLOAT_INSTRUCTIONS and not rank:  # a lifted call only looks for tokens beyond the range
        often = passes if kernel == "exact_scores" else 1
        floors["float32 instructions"] = often * FLOAT_INSTRUCTIONS[kernel] * TERMS / (rate * LANES)
        floors["reciprocals"] = often * RECIPROCALS[kernel] * TERMS / (rate * SPECIAL_LANES)
    if kernel == "matrix product":
        floors["matrix operations"] = (4 if backward else 1) * 2 * TERMS * rank / ceilings["matrix_flops"]
    moved = {
        "exact_scores": passes * 4 * PAIRS,
        "pool_slab": 4 * PAIRS,
        "grade_slab": (4 + (2 if rank else 4)) * PAIRS,
        "lift_tokens": passes * 2 * TOKENS_OF_A_SIDE * (2 * rank + 4),
        "pull_features": 2 * TOKENS_OF_A_SIDE * (4 * rank + 12),
    }
    if kernel in moved:
        floors["bytes"] = moved[kernel] / ceilings["copied_bytes"]
    if not floors:
        return None, ""
    bound = max(floors, key=lambda name: floors[name])
    return floors[bound] * 1e3, bound


if __name__ == "__main__":
    main(sys.argv[1])
