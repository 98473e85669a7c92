"""`regard evaluate` from files to a report: what is wrong is said before a model is loaded."""

import gzip
import json

import pytest
from tests.refuses import refuses
from tests.translation.models import random_model, save_model

from regard.cli import report
from regard.cli.report import Wishes, run
from regard.translation.corpora import built_in


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
    compared = run(Wishes(folders, source=source, target=target, out=out, figure=figure, beams=2))
    printed = capsys.readouterr().out
    assert str(compared) in printed
    assert "note: the references look tokenised; --tokenize none" in printed
    assert printed.endswith(f"wrote {out}\nwrote {figure}\n")
    assert [one["system"] for one in json.loads(out.read_text())["evaluations"]] == [str(folder) for folder in folders]
    assert figure.exists()


def test_bad_lines_are_named_and_left_out_or_refused(folders, tmp_path, capsys):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("ab\tcd\nno tab\n" + "a\t" + "b" * 200 + "\n")
    (found,) = run(Wishes(folders[:1], pairs=pairs, tokenize="none")).evaluations
    printed = capsys.readouterr()
    assert found.count == 2, "a long line of a test set counts like any other"
    assert printed.err == "regard: left out pairs.tsv, line 2: no tab between source and target ('no tab')\n"
    assert "note:" not in printed.out
    with refuses("pairs", "line 2"):
        run(Wishes(folders[:1], pairs=pairs, strict=True))


def test_columns_can_be_read_the_other_way_round(folders, tmp_path):
    pairs, swapped = tmp_path / "pairs.tsv", tmp_path / "swapped.tsv"
    pairs.write_text("ab cd\tbad\n")
    swapped.write_text("bad\tab cd\n")
    first, second = (
        run(Wishes(folders[:1], pairs=path, reverse=reverse)).evaluations[0].metrics
        for path, reverse in ((pairs, False), (swapped, True))
    )
    assert first == second


def test_a_built_in_corpus_is_judged_by_its_test_part(folders, monkeypatch):
    small = {"train": 24, "valid": 12, "test": 12, "longest": 3}
    monkeypatch.setattr(report, "built_in", lambda name, **options: built_in(name, **small, **options))
    (found,) = run(Wishes(folders[:1], corpus="lists")).evaluations
    assert [(group.label, group.count) for group in found.by_label] == [("1", 4), ("2", 4), ("3", 4)]
    assert found.attention_on_span is not None


@pytest.mark.parametrize(
    ("wishes", "argument", "word"),
    [
        ({}, "evaluate", "no test data"),
        ({"corpus": "dates", "pairs": "x"}, "evaluate", "several test data"),
        ({"source": "x"}, "target", "none"),
        ({"target": "x"}, "source", "none"),
        ({"corpus": "daytes"}, "corpus", "'daytes'"),
        ({"corpus": "lists", "language": "fr"}, "language", "the corpus numbers"),
        ({"pairs": "nowhere.tsv"}, "pairs", "nowhere.tsv (No such file or directory)"),
        ({"corpus": "lists", "tokenize": "words"}, "tokenize", "'words'"),
        ({"corpus": "lists", "figure": "x.gif"}, "figure", "'x.gif'"),
    ],
)
def test_mistakes_are_found_before_a_model_is_loaded(wishes, argument, word):
    with refuses(argument, word):
        run(Wishes(("no model",), **wishes))


def test_a_model_is_not_compared_with_itself(folders):
    with refuses("other", "folder", "twice", "same"):
        run(Wishes((folders[0], folders[0]), corpus="lists"))


def test_a_file_without_pairs_and_one_that_cannot_be_written_are_refused(folders, files, tmp_path):
    empty = tmp_path / "empty.tsv"
    empty.touch()
    with refuses("pairs", "0 pairs of", "needed 1", "30000"):
        run(Wishes(folders[:1], pairs=empty))
    with refuses("out", "x.json"):
        run(Wishes(folders[:1], source=files[0], target=files[1], out=tmp_path / "nowhere" / "x.json"))
