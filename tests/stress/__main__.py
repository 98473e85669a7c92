"""`python -m tests.stress`: every promise under stress, two at a time, and the report of what was counted and lost."""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from benchmarks.measure import machine
from tests.stress.stresses import STRESSES, side_by_side

import regard

QUICK = 0.02  # of every count


def main() -> int:
    """The exit status is 1 where anything was lost, or less was tried than promised."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress")
    parser.add_argument("--out", type=Path, default=Path("build/stress.json"))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of everything; the report says so")
    parser.add_argument("--only", choices=STRESSES, nargs="+", default=list(STRESSES))
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    share, begin = QUICK if wanted.quick else 1.0, time.perf_counter()
    found = side_by_side(wanted.only, share, wanted.seed, wanted.jobs)
    report = {
        "suite": "stress",
        "device": "cpu",
        "machine": machine("cpu"),
        "regard": regard.__version__,
        "when": time.strftime("%Y-%m-%d"),
        "seed": wanted.seed,
        "share": share,
        "whole": share == 1.0 and set(wanted.only) == set(STRESSES),
        "jobs": wanted.jobs,
        "seconds": round(time.perf_counter() - begin),
        "losses": sum(len(one["lost"]) for one in found.values()),
        "stresses": {name: found[name] for name in wanted.only},
    }
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"losses: {report['losses']}; report: {wanted.out}")
    return 1 if report["losses"] else 0


if __name__ == "__main__":
    sys.exit(main())
