"""Fonts: every word has one, or a warning names what is missing."""

import warnings
from importlib.util import find_spec

import pytest

from regard.plots import fonts
from regard.plots.fonts import LAST_RESORT, MissingFontWarning, families_for, script_of


def test_latin_greek_and_hebrew_are_written_by_the_usual_font():
    assert families_for(["der", "Ωμέγα", "שלום", "▁the", "Ġof"]) == ["DejaVu Sans"]


def test_blanks_and_marks_of_direction_need_no_font():
    assert families_for(["a b\u200f\u200d\t"]) == ["DejaVu Sans"]


def test_what_the_usual_font_lacks_is_looked_for_elsewhere():
    # cmmi10 comes with matplotlib and has little but letters of formulas.
    families = families_for(["Ж"], usual=("cmmi10",))
    assert families[0] == "cmmi10"
    assert families[1].startswith("DejaVu")
    assert LAST_RESORT not in families


def test_an_unknown_usual_font_is_skipped():
    assert families_for(["a"], usual=("No Such Font", "DejaVu Sans")) == ["DejaVu Sans"]
    assert families_for([]) == ["DejaVu Sans"]


def test_a_script_without_a_font_is_named_with_the_font_to_install(monkeypatch):
    monkeypatch.setattr(fonts, "_learn_new_fonts", lambda: False)
    with pytest.warns(MissingFontWarning) as said:
        families = families_for(["ᚠ", "𐎠", "the"])  # runes, Old Persian
    (warning,) = said
    text = str(warning.message)
    if "Runic" in text:  # an installed font may have one of them
        assert "Noto Sans Runic" in text
    assert "(for example '𐎠')" in text
    assert families[-1] == LAST_RESORT


def test_what_is_no_letter_is_shown_as_it_is(monkeypatch):
    monkeypatch.setattr(fonts, "_choose", lambda wanted, usual: ([*usual], {0x1F980}))
    with pytest.warns(MissingFontWarning, match=r"No installed font has '🦀': boxes are drawn"):
        families_for(["🦀"])


def test_fonts_installed_since_matplotlib_made_its_list_are_found(monkeypatch, tmp_path):
    from matplotlib import font_manager, get_data_path

    font = tmp_path / "new.ttf"
    font.write_bytes((font_manager.Path(get_data_path()) / "fonts/ttf/STIXGeneral.ttf").read_bytes())
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(b"no font")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", list(font_manager.fontManager.ttflist))
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(broken), str(font)])
    assert fonts._learn_new_fonts()
    assert str(font) in {entry.fname for entry in font_manager.fontManager.ttflist}
    assert not fonts._learn_new_fonts()


@pytest.mark.parametrize(("character", "script"), [("a", "Latin"), ("ก", "Thai"), ("한", "CJK"), ("あ", "CJK")])
def test_scripts_by_name(character, script):
    assert script_of(character) == script


def test_matplotlib_itself_has_nothing_to_warn_of(monkeypatch, close_figures):
    """What no font has is drawn in boxes, quietly: one warning, ours."""
    from regard import plots

    assert find_spec("matplotlib")
    monkeypatch.setattr(fonts, "_learn_new_fonts", lambda: False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        plots.heatmap([[0.5, 0.5]], keys=["𐎠", "the"]).figure.canvas.draw()
    assert {warning.category for warning in said} == {MissingFontWarning}
