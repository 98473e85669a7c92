"""`regard translate` from sentences to lines."""

import sys

import pytest
from tests.refuses import refuses
from tests.translation.models import random_model, random_sentences, save_model
from tests.translation.piping.streams import standard_input

from regard.translation import Translator
from regard.translation.piping import Wishes, procedure, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), random_model())


def test_lines_are_the_translations_in_order(folder, capsys):
    sentences = ("ab cd", "", "dab a cab", "d")
    run(Wishes((folder,), sentences=sentences))
    assert capsys.readouterr().out.splitlines() == [one.text for one in Translator.load(folder).translate(sentences)]


def test_the_n_best_are_listed_as_moses_does(folder, capsys):
    run(Wishes((folder, folder), sentences=("ab", "dab"), nbest=2, beams=3, length_penalty=0.0, longest=5))
    best = Translator.load(folder).translate(["ab", "dab"], nbest=2, beams=3, length_penalty=0.0, longest=5)
    lines = [line.split(" ||| ") for line in capsys.readouterr().out.splitlines()]
    assert [(number, text) for number, text, _ in lines] == [
        (str(number), one.text) for number, each in enumerate(best) for one in (each, *each.others)
    ]
    assert float(lines[0][2]) == pytest.approx(best[0].score, abs=1e-4)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["missing", "not UTF-8"])
def test_an_input_that_is_refused_leaves_the_output_as_it_was(folder, tmp_path, content):
    there, kept = tmp_path / "in", tmp_path / "out"
    kept.write_text("precious")
    if content is not None:
        there.write_bytes(content)
    with refuses("input"):
        run(Wishes((folder,), input=there, output=kept))
    assert kept.read_text() == "precious"


def test_a_folder_for_pictures_that_is_refused_leaves_the_output_as_it_was(folder, tmp_path):
    kept, taken = tmp_path / "out", tmp_path / "taken"
    kept.write_text("precious")
    taken.touch()
    with refuses("alignment_out", "exists", "taken", "File"):
        run(Wishes((folder,), sentences=("ab",), output=kept, alignment="svg", alignment_out=taken))
    assert kept.read_text() == "precious"


def test_from_file_to_file(folder, tmp_path, capsys):
    sentences = random_sentences(20)
    (tmp_path / "in").write_text("\n".join(sentences))
    wishes = Wishes(
        (folder,),
        input=tmp_path / "in",
        output=tmp_path / "out",
        alignment="pharaoh",
        alignment_out=tmp_path / "links",
        batch_size=1,
        longest=6,
    )
    run(wishes)
    expected = [one.text for one in Translator.load(folder).translate(sentences, longest=6)]
    assert (tmp_path / "out").read_text().split("\n") == [*expected, ""]
    assert len((tmp_path / "links").read_text().splitlines()) == 20
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("keyboard", "size", "ahead"), [(True, 64, 1), (False, 64, 1024), (False, 1, 1)])
def test_a_keyboard_is_answered_line_by_line(folder, monkeypatch, capsys, keyboard, size, ahead):
    seen = []
    stream = Translator.stream
    monkeypatch.setattr(
        Translator, "stream", lambda self, *given, **options: seen.append(options) or stream(self, *given, **options)
    )
    monkeypatch.setattr(sys, "stdin", standard_input(b"ab\n", keyboard=keyboard))
    run(Wishes((folder,), batch_size=size))
    assert seen[0]["ahead"] == ahead
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_alignments_need_attention(tmp_path):
    plain = save_model(tmp_path, random_model(attention="none"))
    with refuses("alignment", "attention", "without", "model"):
        run(Wishes((plain,), sentences=("ab",), alignment="json"))


def test_a_reader_that_leaves_ends_the_work_quietly(folder, monkeypatch):
    translated = []

    class Gone:
        def write(self, *lines):
            translated.append(lines)
            raise procedure.ReaderLeftError

    class Opened:
        def __enter__(self):
            return Gone()

        def __exit__(self, *failure):
            return False

    monkeypatch.setattr(procedure, "outlet", lambda argument, path: Opened())
    run(Wishes((folder,), sentences=("ab",) * 3))
    assert len(translated) == 1
