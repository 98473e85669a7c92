"""A sign of life: on a terminal only, with its seconds, and never among the results."""

import io
import sys

import pytest

from regard.cli.waiting import waiting


class Stream(io.StringIO):
    """A terminal, or not."""

    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize("terminal", [False, True])
def test_a_terminal_sees_what_is_done_and_anything_else_nothing(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Stream(terminal))
    monkeypatch.setattr(sys, "stdout", Stream(False))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with waiting("fitting data.csv"):
        print("the result")
    assert sys.stdout.getvalue() == "the result\n"
    assert ("fitting data.csv" in sys.stderr.getvalue()) == terminal
    assert ("0:00:0" in sys.stderr.getvalue()) == terminal
