"""The scripts of the guides run by the commands that are shown for them, and print what the page says."""

import os
import shlex
import subprocess
import sys

import pytest
import torch
from tests.docs.pages import PAGES, name_of, scripts_in, transcripts_in

# Dask's workers are threads here: starting processes would take most of the time.
THREADS = """
import runpy, sys
import distributed

class Threaded(distributed.Client):
    def __init__(self, **settings):
        super().__init__(**settings, processes=False, dashboard_address=None)

distributed.Client = Threaded
runpy.run_path(sys.argv[1], run_name="__main__")
"""
# --standalone: a free port, so that two runs on one machine do not meet.
STARTED_BY = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"],
    "python": [sys.executable, "-c", THREADS],
}
TURNS = [(page, *turn) for page in PAGES for turn in transcripts_in(page)]
FIRST = {
    (page, script): next(turn[1:] for turn in TURNS if turn[0] == page and script in shlex.split(turn[1]))
    for page in PAGES
    for script in scripts_in(page)
}


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
@pytest.mark.parametrize(("page", "script"), FIRST, ids=[f"{name_of(page)}: {script}" for page, script in FIRST])
def test_a_script_prints_what_the_page_says(page, script, tmp_path):
    command, printed = FIRST[page, script]
    program, *words = shlex.split(command)
    (tmp_path / script).write_text(scripts_in(page)[script], encoding="utf-8")
    done = subprocess.run(
        [*STARTED_BY[program], *words],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


def test_there_are_scripts_for_both_ways():
    assert {shlex.split(command)[0] for command, _ in FIRST.values()} == {"torchrun", "python"}


LAUNCHED = [(page, command) for page, command, _ in TURNS if shlex.split(command)[0] == "torchrun"]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
@pytest.mark.parametrize(("page", "command"), LAUNCHED, ids=[command[:60] for _, command in LAUNCHED])
def test_torchrun_understands_what_is_shown(page, command):
    from torch.distributed.run import get_args_parser

    words = shlex.split(command.removesuffix("&"))[1:]
    told = get_args_parser().parse_args(words)
    assert (told.training_script == "regard" and told.module) or told.training_script in scripts_in(page)
    assert int(told.nproc_per_node) * int(told.nnodes.partition(":")[0]) == 2, "the page says what two processes print"


def test_the_machines_of_a_run_meet_at_one_place():
    from torch.distributed.run import get_args_parser

    several = [shlex.split(command.removesuffix("&"))[1:] for _, command in LAUNCHED if "--nnodes" in command]
    told = [get_args_parser().parse_args(words) for words in several]
    assert sorted(one.node_rank for one in told) == [0, 1]
    assert len({(one.nnodes, one.master_addr, one.master_port, one.training_script) for one in told}) == 1
