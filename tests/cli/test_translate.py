"""`regard translate`: every flag arrives, bad ones are refused early, and in a pipe it behaves as a filter should."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.streams import standard_input
from tests.refuses import refuses
from tests.translation.models import random_model, random_sentences, save_model

from regard.cli import translate as verb
from regard.cli.app import run
from regard.cli.translate import (
    HINT,
    MAX_NAMED,
    AlignmentOptions,
    is_interactive,
    open_alignments,
    read_sentences,
    translate,
    unknown_part,
)
from regard.translation import Translator
from regard.translation.alignment import to_json, to_pharaoh
from regard.translation.options import SearchOptions


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), random_model())


def translated(models, sentences=(), *, input=None, output=None, device="cpu", **options):
    """Run the verb with options by their names."""
    names = ("alignment", "alignment_of", "alignment_out")
    alignment = AlignmentOptions(**{name: options.pop(name) for name in names if name in options})
    first, *others = models
    return translate(
        first,
        *sentences,
        input=input,
        output=output,
        alignment=alignment,
        search=SearchOptions(**options),
        ensemble=tuple(others),
        device=device,
    )


def test_every_flag_arrives(monkeypatch):
    asked = []
    monkeypatch.setattr(verb, "_translate", lambda *given: asked.append(given))
    flags = {
        "--output": "o",
        "--alignment": "json",
        "--alignment-of": "tokens",
        "--alignment-out": "a",
        "--nbest": "3",
        "--beams": "7",
        "--length-penalty": "0.4",
        "--shortest": "4",
        "--longest": "50",
        "--batch-size": "9",
        "--device": "cuda:1",
    }
    given = [word for pair in flags.items() for word in pair]
    assert run(["translate", "m", "one sentence", "and one more", "--ensemble", "n", "--ensemble", "p", *given]) == 0
    assert run(["translate", "m", "--input", "file"]) == 0
    assert asked == [
        (
            (Path("m"), Path("n"), Path("p")),
            ("one sentence", "and one more"),
            None,
            Path("o"),
            AlignmentOptions("json", "tokens", Path("a")),
            SearchOptions(nbest=3, beams=7, length_penalty=0.4, shortest=4, longest=50, batch_size=9),
            "cuda:1",
        ),
        ((Path("m"),), (), Path("file"), None, AlignmentOptions(), SearchOptions(), "cpu"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "requires an argument"),
        (["nowhere", "ab"], "model: got nowhere, where there is no model.json; needed the folder of a trained model."),
        (["nowhere", "ab", "--input", "x"], "input: got --input x and sentences"),
        (["nowhere", "ab", "--beams", "many"], "--beams"),
        (["nowhere", "--input", "nowhere", "--shortest", "-1"], "shortest: got -1"),
        (["nowhere", "--input", "nowhere", "--device", "tpu"], "device: got 'tpu'"),
        (["nowhere", "ab", "--alignment", "gif"], "alignment: got 'gif'"),
        (["nowhere", "ab", "--output", "no/out.txt"], "output: got no/out.txt (there is no folder no);"),
        (["nowhere", "ab", "--alignment", "json", "--alignment-out", "no/a"], "alignment_out: got no/a (there is"),
    ],
)
def test_a_mistake_is_one_line(arguments, said, capsys):
    assert run(["translate", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    "flags",
    [
        ("--output", "{}/model.json"),
        ("--output", "{}/new.txt"),
        ("--alignment", "json", "--alignment-out", "{}/model.json"),
        ("--alignment", "svg", "--alignment-out", "{}"),
        ("--alignment", "svg", "--alignment-out", "{}/look.svg"),
    ],
)
@pytest.mark.parametrize("voting", [False, True])
def test_a_model_is_not_written_into(folder, tmp_path, flags, voting, capsys):
    link = tmp_path / "link"
    link.symlink_to(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    models = [str(tmp_path / "other"), "ab", "--ensemble", str(folder)] if voting else [str(folder), "ab"]
    assert run(["translate", *models, *(flag.format(link) for flag in flags)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"regard: {flags[-2][2:].replace('-', '_')}: got {flags[-1].format(link)}")
    assert ", which is read; needed " in printed.err
    assert printed.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_reader_that_leaves_ends_it_quietly_and_the_locale_does_not_matter(folder):
    code = "from regard.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "translate", str(folder), "--batch-size", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("dab é\n".encode() * 300)
        process.stdin.flush()
        first = process.stdout.readline()
        assert first.endswith(b"\n")
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


MODEL = (Path("model"),)


def test_options_that_go_together():
    AlignmentOptions()
    AlignmentOptions("json", "words", Path("out"))
    AlignmentOptions("png", alignment_out=Path("a.png"))


@pytest.mark.parametrize(
    ("options", "argument", "word"),
    [
        ({"sentences": ("a",), "input": Path("in")}, "input", "--input in and sentences"),
        ({"alignment_of": "words"}, "alignment_of", "no --alignment"),
        ({"alignment_out": Path("a")}, "alignment_out", "no --alignment"),
        ({"alignment": "gif"}, "alignment", "'gif'"),
        ({"alignment": "json", "alignment_of": "bytes"}, "alignment_of", "'bytes'"),
        ({"alignment": "svg"}, "alignment_out", "none for pictures"),
        (
            {"alignment": "png", "alignment_out": Path("al.SVG")},
            "alignment_out",
            "al.SVG",
        ),
        (
            {"alignment": "svg", "alignment_out": Path("look.pdf")},
            "alignment_out",
            "look.pdf",
        ),
        (
            {"alignment": "json", "output": Path("o"), "alignment_out": Path("o")},
            "alignment_out",
            "where output is written",
        ),
    ],
)
def test_options_that_do_not_go_together(options, argument, word):
    with refuses(argument, word):
        translated(MODEL, **options)


def test_arguments_come_as_they_are():
    assert list(read_sentences(("é a", "", "日本"), None)) == ["é a", "", "日本"]


@pytest.mark.parametrize("code", [0xDCFF, 0xD800], ids=["a byte of the command line", "half a character"])
def test_an_argument_that_is_not_utf8_is_refused(code):
    with refuses("sentences", "byte 2"):
        list(read_sentences(("a", "b" + chr(code)), None))


def test_a_file_may_be_gzipped_and_empty_lines_count(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(gzip.compress("é\r\n\nb".encode()))
    assert list(read_sentences((), path)) == ["é", "", "b"]


def test_a_pipe_is_utf8_whatever_the_locale_says(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", standard_input("\ufeffé\n\nb\n".encode()))
    assert [line.strip() for line in read_sentences((), None)] == ["é", "", "b"]
    assert capsys.readouterr().err == ""


def test_a_broken_line_of_a_pipe_is_named(monkeypatch):
    monkeypatch.setattr(sys, "stdin", standard_input(b"fine\nb\xffd\n"))
    with refuses("input", "byte 2"):
        list(read_sentences((), None))


def test_a_pipe_whose_lines_end_with_carriage_returns_alone_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", standard_input(b"two\rthree\r"))
    with refuses("input", "carriage", "standard", "returns"):
        list(read_sentences((), None))


def test_a_keyboard_gets_a_hint(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", standard_input(b"ab\n", keyboard=True))
    assert is_interactive((), None)
    assert not is_interactive(("a",), None)
    assert not is_interactive((), Path("in"))
    assert list(read_sentences((), None)) == ["ab"]
    assert capsys.readouterr().err == HINT + "\n"


def test_a_file_that_is_not_there_is_refused():
    with refuses("input", "directory", "nowhere", "file"):
        list(read_sentences((), Path("nowhere")))


def test_a_closed_standard_input_is_told_where_it_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with refuses("input", "standard", "closed", "input"):
        is_interactive((), None)
    assert not is_interactive(("one",), None)


@pytest.fixture(scope="module")
def translator():
    return Translator([random_model()])


@pytest.fixture(scope="module")
def translations(translator):
    first, last = translator.force(["ab cd", "dab a cab"], ["cab d", "bad"])
    return [first, *translator.translate([""]), last]


def test_without_a_wish_nothing_follows(translator, translations):
    with open_alignments(AlignmentOptions(), translator) as align:
        assert align(0, translations[0]) == ""


@pytest.mark.parametrize(("unit", "format_"), [("words", "pharaoh"), ("tokens", "json")])
def test_lines_follow_after_a_tab(translator, translations, unit, format_):
    with open_alignments(AlignmentOptions(alignment=format_, alignment_of=unit), translator) as align:
        found = align(0, translations[0])
    one = translations[0]
    expected = to_pharaoh(one.alignment) if unit == "words" else to_json(one.alignment_of_tokens)
    assert found == "\t" + expected


def test_letters_are_aligned_one_by_one_unless_words_are_asked_for(translator, translations):
    with open_alignments(AlignmentOptions(alignment="json"), translator) as align:
        assert json.loads(align(0, translations[0]))["source"] == ["a", "b", "▁", "c", "d"]
    words = Translator([random_model(source_unit="words")])
    with open_alignments(AlignmentOptions(alignment="json", alignment_of="words"), words) as align:
        assert json.loads(align(0, words.translate(["ab cd"])[0]))["source"] == ["ab", "cd"]


def test_a_file_has_a_line_for_every_sentence(translator, translations, tmp_path):
    out = tmp_path / "alignments"
    with open_alignments(AlignmentOptions(alignment="json", alignment_out=out), translator) as align:
        assert [align(number, one) for number, one in enumerate(translations)] == ["", "", ""]
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert lines[1] == {"source": [], "target": [], "weights": [], "unaligned": []}
    assert lines[2]["source"] == list("dab▁a▁cab")


def test_pictures_are_numbered(translator, translations, tmp_path, capsys):
    best = translations[0]
    with open_alignments(AlignmentOptions(alignment="svg", alignment_out=tmp_path / "a.svg"), translator) as align:
        for number, one in enumerate([best, best, translations[1], best]):
            assert align(number // 2 * 2, one) == ""  # the second is another translation of the first sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-3.svg", "a.svg"]
    assert capsys.readouterr().err == ""  # another of the n best was drawn
    with open_alignments(AlignmentOptions(alignment="svg", alignment_out=tmp_path / "all"), translator) as align:
        align(4, best)
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["5.svg"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("numbers", "named"), [([0], "1"), ([0, 2], "1, 3"), (range(20), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and others")]
)
def test_what_cannot_be_drawn_is_told_in_one_line(translator, translations, numbers, named, tmp_path, capsys):
    with open_alignments(AlignmentOptions(alignment="svg", alignment_out=tmp_path / "a.svg"), translator) as align:
        for number in numbers:
            assert align(number, translations[1]) == ""
    said = f"regard: nothing to draw for sentence {named}: it or its translation is empty.\n"
    assert capsys.readouterr() == ("", said)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused(translator, translations, tmp_path):
    taken = tmp_path / "taken"
    taken.touch()
    options = AlignmentOptions(alignment="svg", alignment_out=taken)
    with refuses("alignment_out", "exists", "taken", "File"), open_alignments(options, translator):
        pass
    (tmp_path / "a.svg").mkdir()
    options = AlignmentOptions(alignment="svg", alignment_out=tmp_path / "a.svg")
    with open_alignments(options, translator) as align, refuses("alignment_out", "a.svg (Is a directory)"):
        align(0, translations[0])


def test_lines_are_the_translations_in_order(folder, capsys):
    sentences = ("ab cd", "", "dab a cab", "d")
    translated((folder,), sentences=sentences)
    assert capsys.readouterr().out.splitlines() == [one.text for one in Translator.load(folder).translate(sentences)]


def test_the_n_best_are_listed_as_moses_does(folder, capsys):
    translated((folder, folder), sentences=("ab", "dab"), nbest=2, beams=3, length_penalty=0.0, longest=5)
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
        translated((folder,), input=there, output=kept)
    assert kept.read_text() == "precious"


def test_a_folder_for_pictures_that_is_refused_leaves_the_output_as_it_was(folder, tmp_path):
    kept, taken = tmp_path / "out", tmp_path / "taken"
    kept.write_text("precious")
    taken.touch()
    with refuses("alignment_out", "exists", "taken", "File"):
        translated((folder,), sentences=("ab",), output=kept, alignment="svg", alignment_out=taken)
    assert kept.read_text() == "precious"


def test_from_file_to_file(folder, tmp_path, capsys):
    sentences = random_sentences(20)
    (tmp_path / "in").write_text("\n".join(sentences))
    translated(
        (folder,),
        input=tmp_path / "in",
        output=tmp_path / "out",
        alignment="pharaoh",
        alignment_out=tmp_path / "links",
        batch_size=1,
        longest=6,
    )
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
    translated((folder,), batch_size=size)
    assert seen[0]["ahead"] == ahead
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_alignments_need_attention(tmp_path):
    plain = save_model(tmp_path, random_model(attention="none"))
    with refuses("alignment", "attention", "without", "model"):
        translated((plain,), sentences=("ab",), alignment="json")


def test_a_reader_that_leaves_ends_the_work_quietly(folder, monkeypatch):
    written = []

    class Gone:
        def write(self, *lines):
            written.append(lines)
            raise BrokenPipeError

    class Opened:
        def __enter__(self):
            return Gone()

        def __exit__(self, *failure):
            return False

    monkeypatch.setattr(verb, "open_output", lambda argument, path: Opened())
    with pytest.raises(BrokenPipeError):  # `run` ends quietly
        translated((folder,), sentences=("ab",) * 3)
    assert len(written) == 1


@pytest.mark.parametrize(
    ("text", "part"), [("xyz", "letters"), ("日本 ab", None), ("x ?", "letters"), ("?!", "characters"), ("", None)]
)
def test_text_without_a_known_letter_is_recognised(text, part):
    translator = Translator([random_model()])
    (found,) = translator.translate([text], beams=1)
    assert unknown_part(found.source) == part


@pytest.mark.parametrize("unit", ["bpe", "words"])
def test_unknown_letters_are_recognised_in_every_unit(unit):
    translator = Translator([random_model(source_unit=unit)])
    first, second = translator.translate(["ab xyz", "日本 xyz"], beams=1)
    assert (unknown_part(first.source), unknown_part(second.source)) == (None, "letters")


def test_a_sentence_in_another_script_gets_a_warning_and_a_translation(folder, capsys):
    assert run(["translate", str(folder), "ab", "日本"]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert printed.err == (
        "regard: warning: sentence 2: the model's training data had none of its letters ('日本'). "
        "Its translation means nothing; use a model of its language and script.\n"
    )


def test_a_file_in_another_script_gets_few_warnings(folder, tmp_path, capsys):
    (tmp_path / "in").write_text("日本\n" * 30, encoding="utf-8")
    translated((folder,), input=tmp_path / "in", output=tmp_path / "out", longest=3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MAX_NAMED + 1
    assert lines[-1] == "regard: warning: further sentences with unknown letters are not named."
