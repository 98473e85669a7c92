"""A training as it is seen: lines for a file, a bar for a terminal."""

import io
import sys
from dataclasses import replace

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from regard.cli.progress import BarProgress, PlainProgress, describe, training_progress
from regard.translation.monitoring import EpochEnded, Started, TrainingProgress, TrainingWarning

STARTED = Started(
    updates=100, done=0, parameters=1234567, pairs=2000, skipped=3, source_size=60, target_size=70, resumed_epoch=None
)


def entry(epoch, **more):
    usual = {"update": 10 * epoch, "loss": 2.5 / epoch, "gradient_norm": 1.0, "learning_rate": 0.1, "tokens": 800}
    return EpochEnded(epoch=epoch, seconds=2.0 * epoch, **usual, **more)


def test_lines(capsys):
    lines = PlainProgress()
    for event in (STARTED, TrainingProgress(1, 5, 100, 2.9, 350.0, 0.1), entry(1)):
        lines(event)
    lines(entry(2, bleu=12.345, exact=3.21, is_best=True))
    lines(TrainingWarning("Mind the gap."))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "2,000 pairs (3 longer ones left out), vocabularies of 60 and 70, 1,234,567 parameters",
        "epoch 1  loss 2.500  400 tokens/s  0:00:18 left",
        "epoch 2  loss 1.250  400 tokens/s  BLEU 12.3, exact 3.2%  0:00:16 left  best so far",
        "regard: Mind the gap.",
    ]


def test_a_resumed_training_says_where_it_is():
    assert describe(replace(STARTED, resumed_epoch=4, skipped=0)).endswith("1,234,567 parameters; going on in epoch 4")


def test_a_training_that_is_over_does_not_go_on():
    over = replace(STARTED, resumed_epoch=4, done=STARTED.updates)
    assert describe(over).endswith("parameters; trained to the end already")


def test_the_bar_moves_with_loss_speed_and_the_last_validation():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Progress(TextColumn("{task.description} {task.fields[facts]}"), console=console) as shown:
        bar = BarProgress(shown)
        bar(TrainingWarning("before it starts"))
        bar(STARTED)
        bar(TrainingProgress(1, 5, 100, 2.9, 350.0, 0.1))
        (task,) = shown.tasks
        assert (task.completed, task.total, task.description) == (5, 100, "epoch 1")
        assert task.fields["facts"] == "loss 2.900  350 tokens/s"
        bar(entry(1, bleu=12.345, exact=3.21))
        assert task.completed == 10
        bar(TrainingProgress(2, 15, 100, 2.0, 1350.0, 0.1))
        assert task.fields["facts"] == "loss 2.000  1,350 tokens/s  BLEU 12.3, exact 3.2%"
        bar(entry(2))
        bar(TrainingProgress(3, 25, 100, 1.0, 1350.0, 0.1))
        assert task.fields["facts"].endswith("BLEU 12.3, exact 3.2%")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_terminal_gets_the_bar_and_anything_else_lines(terminal, monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return terminal

    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with training_progress() as listen:
        assert isinstance(listen, BarProgress if terminal else PlainProgress)
        listen(STARTED)
        listen(TrainingProgress(1, 5, 100, 2.9, 350.0, 0.1))
    assert ("loss 2.900" in sys.stderr.getvalue()) == terminal
    assert "vocabularies of 60 and 70" in sys.stderr.getvalue()
