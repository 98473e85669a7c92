"""The pictures of a training: drawn seldom, looking alike, and missed by nobody where they cannot be."""

import errno
import sys

import pytest
from tests.refuses import refuses
from tests.translation.models import random_model

from regard.translation.training import pictures
from regard.translation.training.events import EpochEnded, Warned
from regard.translation.training.pictures import Album, alignment, curve, draw_curve
from regard.translation.translator import Translator


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
    curve(entries(1, validated_from=2), tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_text(encoding="utf-8").count("validation, greedy search") == 1


def test_the_alignment_is_a_file_an_epoch(tmp_path):
    alignment(shown(), 7, tmp_path / "new")
    drawn = (tmp_path / "new" / "alignment-0007.svg").read_text(encoding="utf-8")
    assert "▁" in drawn or "␣" in drawn  # characters are shown where a side is made of them


def test_without_attention_there_is_no_alignment_to_be_drawn(tmp_path):
    alignment(shown(attention="none"), 1, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def calls(monkeypatch):
    made = []
    monkeypatch.setattr(pictures, "curve", lambda entries, path: made.append(path.name))
    monkeypatch.setattr(pictures, "alignment", lambda shown, epoch, folder: made.append(epoch))
    return made


def test_alignments_are_drawn_at_powers_of_two_and_curves_every_half_minute(tmp_path, calls, monkeypatch):
    now = 0.0
    monkeypatch.setattr(pictures.time, "perf_counter", lambda: now)
    album, history = Album(tmp_path, pytest.fail), entries(40)
    for epoch in range(1, 41):
        now += 10.0
        album.add(history[:epoch], None)
    album.close(history, None, 37)
    assert [call for call in calls if isinstance(call, int)] == [1, 2, 4, 8, 16, 32, 37]
    assert calls.count("curve.svg") == 7 + 6  # the others after 12, 20, 24, 28, 36 and 40 epochs


def test_without_matplotlib_it_is_told_once_and_nothing_is_drawn(tmp_path, calls, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    told = []
    album = Album(tmp_path, told.append)
    album.add(entries(1), None)
    album.close(entries(1), None, 1)
    assert told == [Warned(pictures.NOT_DRAWN)]
    assert 'pip install "regard[plots]"' in pictures.NOT_DRAWN
    assert calls == []


def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch):
    def full(figure, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pictures, "save_as", full)
    with refuses("out", "curve.svg"):
        curve(entries(2), tmp_path / "curve.svg")
