"""`python -m tests.stress --seconds 600 --out build/stress.json`: every stress within its time, and the report."""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from tests.stress import growth, properties, readers, two_trainings

import regard

# Each stress with its share of the time; it is given its seconds and returns its counts and what went wrong.
STRESSES = {
    "properties": (properties.run, 0.5),
    "readers": (readers.run, 0.25),
    "memory": (growth.run, 0.2),
    "two trainings": (two_trainings.run, 0.05),
}


def main() -> int:
    """Run them one after the other; the exit status is 1 where anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path, default=Path("build/stress.json"))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    report = {
        "versions": {"regard": regard.__version__, "torch": torch.__version__, "python": sys.version.split()[0]},
        "seed": wanted.seed,
        "seconds": wanted.seconds,
    }
    for name, (run, share) in STRESSES.items():
        begin = time.perf_counter()
        report[name] = run(share * wanted.seconds, wanted.seed)
        report[name]["took"] = round(time.perf_counter() - begin, 1)
        print(f"{name}: {json.dumps(report[name])}", flush=True)
    report["losses"] = sum(len(report[name]["lost"]) for name in STRESSES)
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"losses: {report['losses']}; report: {wanted.out}")
    return 1 if report["losses"] else 0


if __name__ == "__main__":
    sys.exit(main())
