"""`regard bench`: hands over to the benchmarks of a checkout, and says so where there are none."""

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

from regard.cli import bench
from regard.cli.app import run


@pytest.fixture
def called(monkeypatch):
    """What would have been run, and the status it would have ended with."""
    calls = SimpleNamespace(commands=[], status=0)

    def record(command, *, cwd, env, check):
        calls.commands.append((command, cwd, env["PYTHONPATH"]))
        return SimpleNamespace(returncode=calls.status)

    monkeypatch.setattr(subprocess, "run", record)
    return calls


def test_suites_and_device_arrive(called, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    root = bench.checkout()
    assert root is not None
    assert (root / "benchmarks" / "report.py").is_file()
    assert run(["bench", "dot", "additive", "--cuda"]) == 0
    assert called.commands == [([sys.executable, "-m", "benchmarks", "dot", "additive", "--cuda"], root, str(root))]


def test_its_status_is_that_of_the_benchmarks(called):
    called.status = 1
    with pytest.raises(SystemExit) as left:
        run(["bench", "dot"])
    assert left.value.code == 1


def test_without_a_checkout_one_sentence_says_so(called, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "lib" / "regard" / "cli" / "bench.py"))
    assert run(["bench"]) == 2
    assert capsys.readouterr().err == (
        "regard: bench: got an installed package, which has no benchmarks; needed a checkout of the project, "
        "installed from there. Clone it and run make bench.\n"
    )
    assert called.commands == []


def test_without_a_gpu_one_sentence_says_so(called, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(["bench", "--cuda", "dot"]) == 2
    assert capsys.readouterr().err == (
        "regard: cuda: got a machine on which torch finds no GPU; needed one with CUDA. "
        "Leave --cuda out, or see what regard doctor finds.\n"
    )
    assert called.commands == []


def test_help_and_refusal_have_the_list_of_the_benchmarks(called, capsys):
    from benchmarks.__main__ import SUITES

    assert get_args(bench.Suite) == tuple(SUITES)
    assert run(["bench", "--help"]) == 0
    (listed,) = re.findall(r"\[choices:(.*?)\]", capsys.readouterr().out, re.DOTALL)
    assert re.findall(r"\w+", listed) == list(SUITES)  # in lines as wide as the terminal is
    assert run(["bench", "nosuch"]) == 2
    choices = ", ".join(f'"{name}"' for name in SUITES)
    refused = " ".join(re.findall(r'[\w".,:]+', capsys.readouterr().err))
    assert f'Invalid value "nosuch" for SUITES. Choose from: {choices}.' in refused
    assert called.commands == []
