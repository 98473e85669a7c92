"""The property tests of the operator, its masks and backends, with new examples round after round."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FILES = (
    "tests/pooling/test_attend.py",
    "tests/pooling/test_merge.py",
    "tests/masks/test_placed.py",
    "tests/contracts/test_bad_input.py",
    "tests/translation/folder/test_loading.py",
    "tests/translation/folder/test_page.py",
    "tests/translation/vocabularies/test_vocabulary.py",
)


def run(seconds: float, seed: int) -> dict[str, Any]:
    """Files in turn, each with a seed of its own, until the time is over."""
    end, examples, runs, lost = time.perf_counter() + seconds, 0, 0, []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    while (left := end - time.perf_counter()) > 1:
        file = FILES[runs % len(FILES)]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.stress.rounds", file]
        command += ["--hypothesis-profile=round", f"--hypothesis-seed={seed + runs}", "--hypothesis-show-statistics"]
        runs += 1
        try:
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=left, check=False
            )
        except subprocess.TimeoutExpired:
            break  # its examples were not counted, and are not
        examples += sum(map(int, re.findall(r"(\d+) passing", ended.stdout)))
        if ended.returncode:
            lost.append(f"{file} with --hypothesis-seed={seed + runs - 1}: {ended.stdout[-2000:]}")
    return {"runs": runs, "examples": examples, "lost": lost}
