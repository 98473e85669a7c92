"""The cache: where it is, and that a model is in it whole or not at all."""

from pathlib import Path

from tests.refuses import refuses
from tests.studio.conftest import small

from regard.studio.models.cache import Cache, cache_folder

LOOKS_AT_IT = {
    "sentences": [{"language": "de", "text": "ja", "source": ["j", "a"], "target": ["1"]}],
    "frames": [{"update": 8, "loss": 0.5, "share": None, "weights": [[[0.25, 0.75]]]}],
}


def test_the_folder_is_the_one_chosen_or_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder(tmp_path, {"XDG_CACHE_HOME": "/x"}) == tmp_path
    assert cache_folder(None, {"XDG_CACHE_HOME": "/x"}) == Path("/x/regard/studio")
    for told in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert cache_folder(None, told) == Path("/home/somebody/.cache/regard/studio")


def test_a_part_is_no_model_until_it_has_its_name(tmp_path):
    cache, wanted = Cache(tmp_path), small()
    cache.part(wanted).mkdir()
    assert not cache.has(wanted)
    assert cache.looks(wanted) is None
    cache.keep(wanted, LOOKS_AT_IT)
    assert cache.has(wanted)
    assert not cache.part(wanted).exists()
    assert cache.looks(wanted) == LOOKS_AT_IT


def test_a_model_that_came_first_stays(tmp_path):
    cache, wanted = Cache(tmp_path), small()
    cache.part(wanted).mkdir()
    cache.kept(wanted).mkdir()
    (cache.kept(wanted) / "mark").touch()
    cache.keep(wanted, {"sentences": [], "frames": []})
    assert (cache.kept(wanted) / "mark").exists()


def test_dropping_touches_nothing_else(tmp_path):
    cache, wanted, other = Cache(tmp_path), small(), small("other")
    for one in (wanted, other):
        cache.kept(one).mkdir()
    cache.drop(wanted)
    assert not cache.has(wanted)
    assert cache.has(other)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with refuses("cache", "Not a directory", "Pass --cache with another folder"):
        Cache(tmp_path / "file" / "models").check()
