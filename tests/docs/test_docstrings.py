"""Docstrings for autodoc: stars, bars and underscores are what they look like."""

from docstrings import plain


def test_shapes_norms_and_names_are_no_markup():
    assert plain(["(*batch, queries): |q - k| of bandwidth_."]) == [r"(\*batch, queries): \|q - k\| of bandwidth\_."]


def test_code_is_code_and_keeps_its_signs():
    assert plain(["see `regard.attend(*x)` and `a_`"]) == ["see ``regard.attend(*x)`` and ``a_``"]


def test_names_before_any_section_become_a_list():
    lines = ["A score.", "", "softcap: bends the scores.", "sink: heads; each", "    gets a logit.", "More text."]
    assert plain(lines) == [
        "A score.",
        "",
        ":softcap: bends the scores.",
        ":sink: heads; each",
        "    gets a logit.",
        "",
        "More text.",
    ]


def test_sections_are_left_to_napoleon():
    lines = ["Attend.", "", "Args:", "    query: (*batch, queries).", "", "Returns:", "    (*batch, keys)."]
    assert plain(lines)[2:4] == ["Args:", r"    query: (\*batch, queries)."]


def test_examples_stay_as_they_are():
    lines = ["One.", ">>> a_b * 2", "4", "", "a_b"]
    assert plain(lines) == ["One.", "", ">>> a_b * 2", "4", "", r"a\_b"]
