"""What is printed arrives, or is refused in one line; a reader that has gone is another matter."""

import os
import sys
from pathlib import Path

import pytest
from tests.refuses import refuses

from regard.cli.standard_output import arriving


def test_what_is_printed_arrives(capsys):
    stdout = sys.stdout
    with arriving():
        print("é", flush=True)
        assert capsys.readouterr().out == "é\n"
    assert sys.stdout is stdout


@pytest.mark.parametrize("length", [1, 100_000], ids=["in the buffer", "beyond the buffer"])
def test_a_full_disk_is_refused_and_nobody_complains_when_it_is_closed(monkeypatch, length):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with refuses("output", "standard output (No space left on device)"), arriving():
            print("x" * length)
        assert sys.stdout is full


def test_a_closed_one_is_refused_where_something_is_printed(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with arriving():
        pass
    with refuses("output", "descriptor", "standard", "output"), arriving():
        print("x")
    assert sys.stdout is None


def print_and_fail():
    print("x")
    raise ZeroDivisionError


def test_another_error_is_told_instead(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(ZeroDivisionError), arriving():
        print_and_fail()


def test_a_reader_that_has_gone_stays_a_broken_pipe(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    pipe = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stdout", pipe)
    with pytest.raises(BrokenPipeError), arriving():
        print("x")
    with pytest.raises(BrokenPipeError):
        pipe.close()
