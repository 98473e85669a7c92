"""Run the benchmarks: `python -m benchmarks [suite ...]`; results go to benchmarks/results, the table to README.

A red contract means no benchmark: the agreement of the backends is tested before anything is timed.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks import additive, dot, memory, multihead, report
from benchmarks.measure import machine

SUITES = {"dot": dot.run, "multihead": multihead.run, "additive": additive.run, "memory": memory.run}
RESULTS = Path(__file__).parent / "results"


def main(names: list[str]) -> None:
    """Check, time, keep, report."""
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        sys.exit(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    contract = [sys.executable, "-m", "pytest", "-q", "tests/contracts/test_backends_agree.py"]
    if subprocess.run(contract, check=False, stdout=subprocess.DEVNULL).returncode:
        sys.exit("the backends do not agree: no benchmark before tests/contracts/test_backends_agree.py is green")
    torch.manual_seed(0)
    for name in names or SUITES:
        print(f"{name} ...", flush=True)
        rows = SUITES[name]()
        kept = {"suite": name, "date": datetime.now(UTC).date().isoformat(), "machine": machine(), "rows": rows}
        (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    report.write()
    print(report.render())


if __name__ == "__main__":
    main(sys.argv[1:])
