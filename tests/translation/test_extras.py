"""A missing package is named with the extra that brings it."""

import sys

from tests.refuses import refuses

from regard.translation.extras import extra


def test_gives_the_module():
    assert extra("json.decoder", "anything").JSONDecoder


def test_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)
    monkeypatch.delitem(sys.modules, "babel.dates", raising=False)
    with refuses("corpus dates", "no module named", "babel", 'regard[translation]"'):
        extra("babel.dates", "corpus dates")
