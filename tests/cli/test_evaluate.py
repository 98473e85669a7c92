"""`regard evaluate` from flags to a report: what is wrong is refused before a model is loaded."""

import gzip
import json
from pathlib import Path

import pytest
from tests.refuses import refuses
from tests.translation.models import random_model, save_model

from regard.cli import evaluate as verb
from regard.cli.app import run
from regard.translation import corpora
from regard.translation.options import CorpusOptions, SearchOptions


def evaluated(models, *, tokenize="13a", out=None, figure=None, beams=5, **corpus):
    """Run the verb with options by their names."""
    search = SearchOptions(beams=beams)
    verb._evaluate(models, CorpusOptions(**corpus), tokenize, search, "cpu", out, figure, False)


def test_every_flag_arrives(monkeypatch):
    asked = []
    monkeypatch.setattr(verb, "_evaluate", lambda *given: asked.append(given))
    flags = {
        "--pairs": "p",
        "--tokenize": "none",
        "--beams": "7",
        "--length-penalty": "0.4",
        "--batch-size": "9",
        "--device": "cuda:1",
        "--out": "r.json",
        "--figure": "f.svg",
    }
    given = [word for pair in flags.items() for word in pair]
    assert run(["evaluate", "m", "n", "--reverse", "--strict", "--json", *given]) == 0
    assert run(["evaluate", "m", "--source", "s", "--target", "t"]) == 0
    assert run(["evaluate", "m", "--corpus", "numbers", "--language", "fr"]) == 0
    corpus = CorpusOptions(pairs=Path("p"), reverse=True, strict=True)
    search = SearchOptions(beams=7, length_penalty=0.4, batch_size=9)
    files = (Path("r.json"), Path("f.svg"))
    usual = ("13a", SearchOptions(), "cpu", None, None, False)
    assert asked == [
        ((Path("m"), Path("n")), corpus, "none", search, "cuda:1", *files, True),
        ((Path("m"),), CorpusOptions(source=Path("s"), target=Path("t")), *usual),
        ((Path("m"),), CorpusOptions(corpus="numbers", language="fr"), *usual),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "requires an argument"),
        (["m"], "evaluate: got no sentence pairs; needed --corpus, or --pairs, or --source and --target."),
        (["m", "--source", "s"], "target: got none; needed both --source and --target."),
        (["m", "--corpus", "poems"], "corpus: got 'poems'"),
        (["m", "--pairs", "p", "--tokenize", "x"], "tokenize: got 'x'"),
        (["m", "--beams", "many"], "--beams"),
        (["m", "--pairs", "p", "--length-penalty", "nan"], "length_penalty: got nan"),
        (["m", "--pairs", "p", "--device", "tpu"], "device: got 'tpu'"),
        (["m", "--corpus", "dates", "--out", "no/r.json"], "out: got no/r.json (there is no folder no);"),
        (["m", "--corpus", "dates", "--figure", "no/f.svg"], "figure: got no/f.svg (there is no folder no);"),
    ],
)
def test_a_mistake_is_one_line(arguments, said, capsys):
    assert run(["evaluate", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_json_is_all_there_is_on_standard_output(folders, files, capsys):
    source, target = map(str, files)
    assert run(["evaluate", str(folders[0]), "--source", source, "--target", target, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["evaluations"][0]["count"] == 3
    assert "  BLEU " in printed.err


@pytest.mark.parametrize(("flag", "number"), [("--beams", "100000"), ("--beams", "0"), ("--batch-size", "-1")])
def test_an_effort_without_end_is_refused_before_a_model_is_loaded(flag, number, capsys):
    assert run(["evaluate", "no model", "--corpus", "dates", flag, number]) == 2
    assert (
        f"regard: {flag[2:].replace('-', '_')}: got {number}; needed a whole number from 1 to "
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("flag", "models"), [("--out", ("model",)), ("--figure", ("model",)), ("--out", ("m", "model"))]
)
def test_a_model_is_not_overwritten(flag, models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "model" / "source.vocabulary"
    kept.parent.mkdir()
    kept.write_text("precious")
    assert run(["evaluate", *models, "--pairs", "p.tsv", flag, "model/source.vocabulary"]) == 2
    said = "got model/source.vocabulary, which is read; needed another file. It would be overwritten."
    assert capsys.readouterr() == ("", f"regard: {flag[2:]}: {said}\n")
    assert kept.read_text() == "precious"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return save_model(root / "one", random_model(4)), save_model(root / "two", random_model(5))


@pytest.fixture
def files(tmp_path):
    source, target = tmp_path / "test.a", tmp_path / "test.b.gz"
    source.write_text("ab cd\ndab\nbad\n")
    target.write_bytes(gzip.compress(b"cab .\nbad .\nadd .\n"))
    return source, target


def test_parallel_files_with_everything_written(folders, files, tmp_path, capsys):
    source, target = files
    out, figure = tmp_path / "result.json", tmp_path / "by-length.svg"
    evaluated(folders, source=source, target=target, out=out, figure=figure, beams=2)
    printed = capsys.readouterr().out
    assert f"{folders[1]} against {folders[0]}: BLEU" in printed
    assert "note: the references look tokenised; --tokenize none" in printed
    assert printed.endswith(f"wrote {out}\nwrote {figure}\n")
    assert [one["system"] for one in json.loads(out.read_text())["evaluations"]] == [str(folder) for folder in folders]
    assert figure.exists()


def test_bad_lines_are_named_and_left_out_or_refused(folders, tmp_path, capsys):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("ab\tcd\nno tab\n" + "a\t" + "b" * 200 + "\n")
    evaluated(folders[:1], pairs=pairs, tokenize="none")
    printed = capsys.readouterr()
    assert ": 2 sentences in " in printed.out, "a long line of a test set counts like any other"
    assert printed.err == "regard: skipped pairs.tsv, line 2: no tab between source and target ('no tab')\n"
    assert "note:" not in printed.out
    with refuses("pairs", "line 2"):
        evaluated(folders[:1], pairs=pairs, strict=True)


def test_columns_can_be_read_the_other_way_round(folders, tmp_path):
    pairs, swapped = tmp_path / "pairs.tsv", tmp_path / "swapped.tsv"
    pairs.write_text("ab cd\tbad\n")
    swapped.write_text("bad\tab cd\n")
    metrics = []
    for path, reverse in ((pairs, False), (swapped, True)):
        evaluated(folders[:1], pairs=path, reverse=reverse, out=tmp_path / "out.json")
        metrics.append(json.loads((tmp_path / "out.json").read_text())["evaluations"][0]["metrics"])
    assert metrics[0] == metrics[1]


def test_a_built_in_corpus_is_judged_by_its_test_part(folders, monkeypatch, tmp_path):
    small = {"train": 24, "valid": 12, "test": 12, "longest": 3}
    make = corpora.built_in_corpus
    monkeypatch.setattr(corpora, "built_in_corpus", lambda name, **options: make(name, **small, **options))
    evaluated(folders[:1], corpus="lists", out=tmp_path / "out.json")
    (found,) = json.loads((tmp_path / "out.json").read_text())["evaluations"]
    assert [(group["label"], group["count"]) for group in found["by_label"]] == [("1", 4), ("2", 4), ("3", 4)]
    assert found["attention_on_span"] is not None


@pytest.mark.parametrize(
    ("options", "argument", "word"),
    [
        ({}, "evaluate", "no sentence pairs"),
        ({"corpus": "dates", "pairs": "x"}, "evaluate", "several corpora"),
        ({"source": "x"}, "target", "none"),
        ({"target": "x"}, "source", "none"),
        ({"corpus": "daytes"}, "corpus", "'daytes'"),
        ({"corpus": "lists", "language": "fr"}, "language", "the corpus numbers"),
        ({"pairs": "nowhere.tsv"}, "pairs", "nowhere.tsv (No such file or directory)"),
        ({"corpus": "lists", "tokenize": "words"}, "tokenize", "'words'"),
        ({"corpus": "lists", "figure": "x.gif"}, "figure", "'x.gif'"),
    ],
)
def test_mistakes_are_found_before_a_model_is_loaded(options, argument, word):
    with refuses(argument, word):
        evaluated(("no model",), **options)


def test_a_model_is_not_compared_with_itself(folders):
    with refuses("other", "folder", "twice", "same"):
        evaluated((folders[0], folders[0]), corpus="lists")


def test_a_file_without_pairs_and_one_that_cannot_be_written_are_refused(folders, files, tmp_path):
    empty = tmp_path / "empty.tsv"
    empty.touch()
    with refuses("pairs", "0 pairs of", "needed 1", "30000"):
        evaluated(folders[:1], pairs=empty)
    with refuses("out", "x.json"):
        evaluated(folders[:1], source=files[0], target=files[1], out=tmp_path / "nowhere" / "x.json")
