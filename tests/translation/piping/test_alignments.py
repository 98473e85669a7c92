"""Alignments behind their translation, in a file of their own, or as pictures."""

import json
from pathlib import Path

import pytest
from tests.refuses import refuses
from tests.translation.models import random_model

from regard.translation import Translator
from regard.translation.alignment import to_json, to_pharaoh
from regard.translation.piping.alignments import aligner
from regard.translation.piping.wishes import Wishes

MODEL = (Path("model"),)


@pytest.fixture(scope="module")
def translator():
    return Translator([random_model()])


@pytest.fixture(scope="module")
def translations(translator):
    first, last = translator.force(["ab cd", "dab a cab"], ["cab d", "bad"])
    return [first, *translator.translate([""]), last]


def test_without_a_wish_nothing_follows(translator, translations):
    with aligner(Wishes(MODEL), translator) as align:
        assert align(0, translations[0]) == ""


@pytest.mark.parametrize(("unit", "format_"), [("words", "pharaoh"), ("tokens", "json")])
def test_lines_follow_after_a_tab(translator, translations, unit, format_):
    with aligner(Wishes(MODEL, alignment=format_, alignment_of=unit), translator) as align:
        found = align(0, translations[0])
    one = translations[0]
    expected = to_pharaoh(one.alignment) if unit == "words" else to_json(one.alignment_of_tokens)
    assert found == "\t" + expected


def test_letters_are_aligned_one_by_one_unless_words_are_asked_for(translator, translations):
    with aligner(Wishes(MODEL, alignment="json"), translator) as align:
        assert json.loads(align(0, translations[0]))["source"] == ["a", "b", "▁", "c", "d"]
    words = Translator([random_model(source_unit="words")])
    with aligner(Wishes(MODEL, alignment="json", alignment_of="words"), words) as align:
        assert json.loads(align(0, words.translate(["ab cd"])[0]))["source"] == ["ab", "cd"]


def test_a_file_has_a_line_for_every_sentence(translator, translations, tmp_path):
    out = tmp_path / "alignments"
    with aligner(Wishes(MODEL, alignment="json", alignment_out=out), translator) as align:
        assert [align(number, one) for number, one in enumerate(translations)] == ["", "", ""]
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert lines[1] == {"source": [], "target": [], "weights": [], "unaligned": []}
    assert lines[2]["source"] == list("dab▁a▁cab")


def test_pictures_are_numbered(translator, translations, tmp_path, capsys):
    best = translations[0]
    with aligner(Wishes(MODEL, alignment="svg", alignment_out=tmp_path / "a.svg"), translator) as align:
        for number, one in enumerate([best, best, translations[1], best]):
            assert align(number // 2 * 2, one) == ""  # the second is another translation of the first sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-3.svg", "a.svg"]
    assert capsys.readouterr().err == ""  # another of the n best was drawn
    with aligner(Wishes(MODEL, alignment="svg", alignment_out=tmp_path / "all"), translator) as align:
        align(4, best)
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["5.svg"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("numbers", "named"), [([0], "1"), ([0, 2], "1, 3"), (range(20), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and others")]
)
def test_what_cannot_be_drawn_is_told_in_one_line(translator, translations, numbers, named, tmp_path, capsys):
    with aligner(Wishes(MODEL, alignment="svg", alignment_out=tmp_path / "a.svg"), translator) as align:
        for number in numbers:
            assert align(number, translations[1]) == ""
    said = f"regard: nothing to draw for sentence {named}: it or its translation is empty.\n"
    assert capsys.readouterr() == ("", said)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused(translator, translations, tmp_path):
    taken = tmp_path / "taken"
    taken.touch()
    wishes = Wishes(MODEL, alignment="svg", alignment_out=taken)
    with refuses("alignment_out", "exists", "taken", "File"), aligner(wishes, translator):
        pass
    (tmp_path / "a.svg").mkdir()
    wishes = Wishes(MODEL, alignment="svg", alignment_out=tmp_path / "a.svg")
    with aligner(wishes, translator) as align, refuses("alignment_out", "a.svg (Is a directory)"):
        align(0, translations[0])
