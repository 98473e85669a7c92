"""Where there is no browser the tests that need one say so, and nobody can overlook it."""

import pytest
from tests.studio import browser


def test_without_chromium_the_skip_is_loud(monkeypatch, tmp_path, capfd):
    pytest.importorskip("playwright")
    monkeypatch.setattr(browser, "CHROMIUM", tmp_path / "chromium")
    with pytest.raises(pytest.skip.Exception, match="NO BROWSER TESTS"):
        browser.needs_chromium()
    printed = capfd.readouterr().err
    assert "are NOT tested" in printed
    assert "!!!!!!!!" in printed
