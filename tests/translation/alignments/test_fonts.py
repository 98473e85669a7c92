"""`families_for`: the usual font where it will do, a box where none will."""

from regard.translation.alignments.fonts import LAST_RESORT, families_for


def test_the_usual_font_writes_most_of_europe():
    assert families_for(["naïve", "Ελλάδα", "год", "▁the"]) == ["DejaVu Sans"]


def test_what_the_usual_font_lacks_is_looked_for_elsewhere():
    # cmmi10 comes with matplotlib and has little but letters of formulas.
    families = families_for(["Ж"], usual=("cmmi10",))
    assert families[0] == "cmmi10"
    assert families[1].startswith("DejaVu")
    assert LAST_RESORT not in families


def test_what_no_font_has_is_left_to_the_last_resort():
    nobodys = chr(0xE0FFF)  # no character at all
    assert families_for(["a", nobodys])[-1] == LAST_RESORT


def test_an_unknown_usual_font_is_skipped():
    assert families_for(["a"], usual=("No Such Font", "DejaVu Sans")) == ["DejaVu Sans"]
    assert families_for([]) == ["DejaVu Sans"]
