"""Property tests of operator, masks, merging, kernels, contracts and files, with new examples round after round."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
LEAST = 0.9  # of what an area wants, the sum apart
ROUND = 8_000  # examples of one process, over all of its tests: it starts in seconds and forgets in the end


class Area(NamedTuple):
    """Files of property tests; wanted: examples in sum; tests: about how many there are, to share them."""

    files: tuple[str, ...]
    wanted: int
    tests: int


AREAS = {
    "operator": Area(("tests/stress/any_call.py",), 45_000, 5),
    "masks": Area(("tests/masks/test_bound.py",), 21_000, 7),
    "hull and merge": Area(("tests/attention/test_attend.py", "tests/attention/test_merge.py"), 16_000, 4),
    "bad input": Area(("tests/contracts/test_bad_input.py",), 16_000, 5),
    "files": Area(
        (
            "tests/translation/folder/test_loading.py",
            "tests/translation/folder/test_page.py",
            "tests/translation/vocabularies/test_vocabulary.py",
        ),
        4_000,
        30,
    ),
    "kernels in the interpreter": Area(
        ("tests/stress/any_kernel_call.py", "tests/backends/triton/additive/test_exact.py"), 300, 3
    ),
}


def run(share: float, seconds: float, seed: int) -> dict[str, Any]:
    """Areas in turn, each until its examples have run: `share` of those wanted, or until the time is over."""
    end, lost = time.perf_counter() + seconds, []
    left = {name: max(1, round(share * area.wanted)) for name, area in AREAS.items()}
    found = dict.fromkeys(AREAS, 0)
    while any(left.values()) and time.perf_counter() < end:
        for name in [name for name in AREAS if left[name]]:
            seed += 1
            passed, complaint = _round(AREAS[name], min(left[name], ROUND), seed, end - time.perf_counter())
            found[name] += passed
            left[name] = max(0, left[name] - passed)
            if complaint:
                lost.append(f"{name}, --hypothesis-seed={seed}: {complaint}")
                left[name] = 0  # one failure says it; the others go on
    lost += [
        f"{name}: {found[name]} examples of {wanted}"
        for name, area in AREAS.items()
        if found[name] < (wanted := round(share * LEAST * area.wanted))
    ]
    return {"counts": {"examples": sum(found.values())}, "areas": found, "lost": lost}


def _round(area: Area, wanted: int, seed: int, seconds: float) -> tuple[int, str]:
    """One process; how many examples passed, and what failed."""
    each = max(1, -(-wanted // area.tests))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "REGARD_EXAMPLES": str(each)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.stress.rounds"]
    command += area.files
    command += [f"--hypothesis-seed={seed}", "--hypothesis-show-statistics"]
    try:
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=max(1.0, seconds),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 0, ""  # the time was over; what it had done is not counted
    phases = re.findall(r"during generate phase.*?(\d+) passing", ended.stdout, re.DOTALL)
    return sum(map(int, phases)), ended.stdout[-3000:] if ended.returncode else ""
