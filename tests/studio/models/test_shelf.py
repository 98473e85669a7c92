"""The shelf of a given folder: one model, by its name, with what its folder says of it."""

import time

import pytest
from tests.refuses import refuses
from tests.translation.models import random_model, save_model

from regard.studio.models.shelf import Book, Shelf, validation_of


def test_a_given_folder_is_the_only_model(shelf, learnt):
    (facts,) = shelf.facts()["models"]
    assert (facts["name"], facts["title"], facts["state"]) == ("given", learnt[0].folder, "ready")
    assert 0 <= facts["exact"] <= 100
    shelf.begin()
    shelf.stop()
    assert shelf.translator("given").translate(["5. Oktober 2010"])[0].text
    assert shelf.looks("given", 0) == {"sentences": [], "first": 0, "frames": []}


@pytest.mark.parametrize("name", ["", "other", "/etc", "../given", "given/"])
def test_no_name_is_a_path(shelf, name):
    with refuses("model", "given"):
        shelf.translator(name)
    with refuses("model"):
        shelf.looks(name, 0)


def test_a_damaged_folder_is_refused_at_once(tmp_path):
    folder = save_model(tmp_path / "model", random_model())
    (folder / "model.safetensors").write_bytes(b"nothing")
    with refuses(str(folder / "model.safetensors")):
        Shelf.of_folder(folder)


@pytest.mark.parametrize("told", [None, {}, {"exact": "all"}, {"exact": True}, {"exact": 1e9}, {"exact": -1}, "no"])
def test_a_quality_that_cannot_be_believed_is_not_shown(told, tmp_path):
    loaded = random_model(metadata={"validation": told})
    shelf = Shelf.of_folder(save_model(tmp_path / "model", loaded))
    assert validation_of(shelf.translator("given"))["exact"] is None


def test_the_time_left_is_that_of_what_is_left():
    book = Book("a", "a", "training")
    assert book.facts()["seconds_left"] is None
    book.told = {"update": 30, "updates": 50, "first": 10}
    book.begun = time.monotonic() - 40  # for 20 updates, and 20 are left
    assert book.facts()["seconds_left"] == pytest.approx(40, abs=1)
