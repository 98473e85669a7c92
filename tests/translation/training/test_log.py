"""The log: one JSON object a line, cut back to where a training goes on."""

import errno
import json
import os

import pytest
from tests.refuses import refuses

from regard.translation.training.events import EpochEnded
from regard.translation.training.log import NAME, Log


def entry(epoch):
    return EpochEnded(
        epoch=epoch, update=epoch * 3, loss=1 / epoch, gradient_norm=0.5, learning_rate=0.1, tokens=7, seconds=1.0
    )


def test_lines_are_read_back_and_cut(tmp_path):
    log = Log(tmp_path, 0)
    for epoch in (1, 2, 3):
        log.add(entry(epoch))
    lines = (tmp_path / NAME).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
    again = Log(tmp_path, 2)
    assert again.entries == [entry(1), entry(2)]
    assert (tmp_path / NAME).read_text(encoding="utf-8").splitlines() == lines[:2]
    assert Log(tmp_path, 0).entries == []


def test_half_a_line_of_a_training_that_was_killed_goes(tmp_path):
    Log(tmp_path, 0).add(entry(1))
    with (tmp_path / NAME).open("a", encoding="utf-8") as file:
        file.write('{"epoch": 2, "upd')
    assert Log(tmp_path, 1).entries == [entry(1)]


def test_a_full_disk_costs_no_line(tmp_path, monkeypatch):
    log = Log(tmp_path, 0)
    log.add(entry(1))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refuses("out", "space", "left"):
        Log(tmp_path, 1)
    monkeypatch.undo()
    assert Log(tmp_path, 1).entries == [entry(1)]
    assert [file.name for file in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("content", [b"\xff", b'{"a"', b'{"epoch": 1}', b"3"])
def test_a_damaged_log_is_named(tmp_path, content):
    (tmp_path / NAME).write_bytes(content)
    with refuses("out", "log.jsonl"):
        Log(tmp_path, 1)


def test_a_log_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / NAME).mkdir()
    with refuses("out", "log.jsonl"):
        Log(tmp_path, 0)
