"""A missing package is named with the extra that brings it."""

import sys

from tests.refuses import refuses

from regard.extras import require


def test_gives_the_module():
    assert require("json.decoder", "translation", "anything").JSONDecoder


def test_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)
    monkeypatch.delitem(sys.modules, "babel.dates", raising=False)
    with refuses("corpus dates", "no module named", "babel", 'regard[translation]"'):
        require("babel.dates", "translation", "corpus dates")
