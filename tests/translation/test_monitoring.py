"""Events of a training, its log, and the pictures that it leaves behind."""

import errno
import json
import os
import sys

import pytest
from tests.refuses import refuses
from tests.translation.models import random_model

from regard.translation import monitoring
from regard.translation.monitoring import (
    LOG_NAME,
    EpochEnded,
    EpochLog,
    TrainingPlots,
    TrainingWarning,
    draw_curve,
    save_curve,
    save_sample_alignment,
)
from regard.translation.translator import Translator


def entry(epoch):
    return EpochEnded(
        epoch=epoch, update=epoch * 3, loss=1 / epoch, gradient_norm=0.5, learning_rate=0.1, tokens=7, seconds=1.0
    )


def test_lines_are_read_back_and_cut(tmp_path):
    log = EpochLog(tmp_path, 0)
    for epoch in (1, 2, 3):
        log.add(entry(epoch))
    lines = (tmp_path / LOG_NAME).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
    again = EpochLog(tmp_path, 2)
    assert again.entries == [entry(1), entry(2)]
    assert (tmp_path / LOG_NAME).read_text(encoding="utf-8").splitlines() == lines[:2]
    assert EpochLog(tmp_path, 0).entries == []


def test_half_a_line_of_a_training_that_was_killed_goes(tmp_path):
    EpochLog(tmp_path, 0).add(entry(1))
    with (tmp_path / LOG_NAME).open("a", encoding="utf-8") as file:
        file.write('{"epoch": 2, "upd')
    assert EpochLog(tmp_path, 1).entries == [entry(1)]


def test_a_full_disk_costs_no_line(tmp_path, monkeypatch):
    log = EpochLog(tmp_path, 0)
    log.add(entry(1))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refuses("out", "space", "left"):
        EpochLog(tmp_path, 1)
    monkeypatch.undo()
    assert EpochLog(tmp_path, 1).entries == [entry(1)]
    assert [file.name for file in tmp_path.iterdir()] == [LOG_NAME]


@pytest.mark.parametrize("content", [b"\xff", b'{"a"', b'{"epoch": 1}', b"3"])
def test_a_damaged_log_is_named(tmp_path, content):
    (tmp_path / LOG_NAME).write_bytes(content)
    with refuses("out", "log.jsonl"):
        EpochLog(tmp_path, 1)


def test_a_log_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / LOG_NAME).mkdir()
    with refuses("out", "log.jsonl"):
        EpochLog(tmp_path, 0)


def entries(count, validated_from=1):
    return [
        EpochEnded(
            epoch=epoch,
            update=epoch * 10,
            loss=3 / epoch,
            gradient_norm=1.0,
            learning_rate=0.1,
            tokens=100,
            seconds=float(epoch),
            bleu=10.0 * epoch if epoch >= validated_from else None,
            exact=5.0 * epoch if epoch >= validated_from else None,
            valid_loss=4 / epoch if epoch >= validated_from else None,
            is_best=epoch >= validated_from,
        )
        for epoch in range(1, count + 1)
    ]


def shown(**choices):
    return Translator([random_model(**choices)]).force(["dab a cab"], ["bad cab"])[0]


def test_the_curve_has_loss_and_quality_over_the_epochs():
    loss, quality = draw_curve(entries(5, validated_from=3)).axes
    assert [line.get_label() for line in loss.lines] == ["training", "validation"]
    assert list(loss.lines[0].get_xdata()) == [1, 2, 3, 4, 5]
    assert list(loss.lines[1].get_ydata()) == [4 / 3, 1.0, 0.8]
    assert list(quality.lines[0].get_ydata()) == [30, 40, 50]
    assert list(quality.lines[1].get_ydata()) == [15, 20, 25]
    assert quality.get_title("right") == "kept: 50.0"


def test_a_curve_without_a_validation_is_a_curve_of_the_loss(tmp_path):
    save_curve(entries(1, validated_from=2), tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_text(encoding="utf-8").count("validation, greedy search") == 1


def test_the_alignment_is_a_file_an_epoch(tmp_path):
    save_sample_alignment(shown(), 7, tmp_path / "new")
    drawn = (tmp_path / "new" / "alignment-0007.svg").read_text(encoding="utf-8")
    assert "▁" in drawn or "␣" in drawn  # characters are shown where a side is made of them


def test_without_attention_there_is_no_alignment_to_be_drawn(tmp_path):
    save_sample_alignment(shown(attention="none"), 1, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def calls(monkeypatch):
    made = []
    monkeypatch.setattr(monitoring, "save_curve", lambda entries, path: made.append(path.name))
    monkeypatch.setattr(monitoring, "save_sample_alignment", lambda shown, epoch, folder: made.append(epoch))
    return made


def test_alignments_are_drawn_at_powers_of_two_and_curves_every_half_minute(tmp_path, calls, monkeypatch):
    now = 0.0
    monkeypatch.setattr(monitoring.time, "perf_counter", lambda: now)
    album, history = TrainingPlots(tmp_path, pytest.fail), entries(40)
    for epoch in range(1, 41):
        now += 10.0
        album.update(history[:epoch], None)
    album.finish(history, None, 37)
    assert [call for call in calls if isinstance(call, int)] == [1, 2, 4, 8, 16, 32, 37]
    assert calls.count("curve.svg") == 7 + 6  # the others after 12, 20, 24, 28, 36 and 40 epochs


def test_without_matplotlib_it_is_told_once_and_nothing_is_drawn(tmp_path, calls, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    told = []
    album = TrainingPlots(tmp_path, told.append)
    album.update(entries(1), None)
    album.finish(entries(1), None, 1)
    assert told == [TrainingWarning(monitoring.NOT_DRAWN)]
    assert 'pip install "regard[plots]"' in monitoring.NOT_DRAWN
    assert calls == []


def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch):
    def full(figure, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(monitoring, "save_as", full)
    with refuses("out", "curve.svg"):
        save_curve(entries(2), tmp_path / "curve.svg")
