"""Run the benchmarks: `python -m benchmarks [--cuda] [suite ...]`.

Results go to benchmarks/results, the tables made from them to the README and to RESULTS.md beside this file. A red
contract means no benchmark: the agreement of the backends is tested before anything is timed.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks import (
    additive,
    additive_lengths,
    distance_gpu,
    dot,
    imports,
    length_map,
    memory,
    multihead,
    regression,
    report,
)
from benchmarks.measure import machine

SUITES = {
    "dot": dot.run,
    "multihead": multihead.run,
    "additive": additive.run,
    "lengths": additive_lengths.run,
    "memory": memory.run,
    "regression": regression.run,
    "imports": imports.run,
    "distance": distance_gpu.run,
    "map": length_map.run,
}
# Suites that take more than a quarter of an hour, and run only if they are named.
LONG = ("map",)
# What a suite keeps beside its rows.
BESIDE = {"additive": additive.beside}
RESULTS = Path(__file__).parent / "results"


def main(names: list[str]) -> None:
    """Check, time, keep, report."""
    device = "cuda" if "--cuda" in names else "cpu"
    names = [name for name in names if name != "--cuda"]
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        sys.exit(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    contract = [sys.executable, "-m", "pytest", "-q", "tests/contracts/test_backends_agree.py"]
    if subprocess.run(contract, check=False, stdout=subprocess.DEVNULL).returncode:
        sys.exit("the backends do not agree: no benchmark before tests/contracts/test_backends_agree.py is green")
    torch.manual_seed(0)
    for name in names or [name for name in SUITES if name not in LONG]:
        print(f"{name} ...", flush=True)
        rows = SUITES[name](device)
        if not rows:
            continue
        date = datetime.now(UTC).date().isoformat()
        kept = {"suite": name, "device": device, "date": date, "machine": machine(device), "rows": rows}
        if name in BESIDE:
            kept |= BESIDE[name](device)
        file = RESULTS / (f"{name}.json" if device == "cpu" else f"{name}-{device}.json")
        file.write_text(json.dumps(kept, indent=1) + "\n")
    report.write()
    print(report.short())


if __name__ == "__main__":
    main(sys.argv[1:])
