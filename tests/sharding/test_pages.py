"""The two pages about sharding say what is so: tables are rendered, the example runs and prints what it says."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import sharding_paper

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "several-machines.md").read_text(encoding="utf-8")
PAPER = sharding_paper.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sharding_paper.render())
def test_the_tables_are_rendered_from_the_figures(name):
    generated = PAPER.split(sharding_paper.BEGIN.format(name) + "\n")[1].split(sharding_paper.END)[0]
    assert generated.strip() == sharding_paper.render()[name], "run python -m benchmarks.sharding paper"


def test_what_was_measured_is_what_was_counted():
    rows = json.loads((sharding_paper.RESULTS / "sharding.json").read_text())["rows"]
    assert {row["ranks"] for row in rows} >= {1, 2, 4}
    assert all(sum(row["sent_bytes"]) == row["counted_bytes"] for row in rows)
    held = {}
    for row in rows:
        held.setdefault(row["case"], []).append(max(row["peak_bytes"]))
    assert all(most == sorted(most, reverse=True) for most in held.values()), "memory of a rank falls with the ranks"


def test_communication_dominates_below_the_threshold_and_not_above_it():
    work = sharding_paper.dot()
    tokens = sharding_paper.fewest_tokens(work, sharding_paper.BETWEEN, backward=True)
    above, below = (sharding_paper.estimate(work, tokens * factor, 64) for factor in (3, 0.3))
    assert above.moving < above.computing == pytest.approx(above.together)
    assert below.computing < below.moving == pytest.approx(below.together, rel=0.05)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_the_example_runs_on_two_processes_and_prints_what_the_page_says(tmp_path):
    (script,) = re.findall(r"```\{code-block\} python\n:caption: example.py\n\n(.*?)```", GUIDE, flags=re.DOTALL)
    (command, printed) = re.findall(r"\$ (torchrun --nproc-per-node 2 example.py)\n(.*?)```", GUIDE, flags=re.DOTALL)[0]
    (tmp_path / "example.py").write_text(script)
    # --standalone: a free port, so that two runs on one machine do not meet.
    started = [sys.executable, "-m", "torch.distributed.run", "--standalone", *shlex.split(command)[1:]]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(started, cwd=tmp_path, env=threads, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
