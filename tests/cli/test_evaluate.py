"""`regard evaluate`: the verb hands over what it was given."""

from pathlib import Path

import pytest

from regard.cli import report
from regard.cli.app import run
from regard.cli.report import Wishes


def test_every_flag_arrives(monkeypatch):
    asked = []
    monkeypatch.setattr(report, "run", asked.append)
    flags = {
        "--source": "s",
        "--target": "t",
        "--pairs": "p",
        "--corpus": "numbers",
        "--language": "fr",
        "--tokenize": "none",
        "--beams": "7",
        "--length-penalty": "0.4",
        "--batch-size": "9",
        "--device": "cuda:1",
        "--out": "r.json",
        "--figure": "f.svg",
    }
    given = [word for pair in flags.items() for word in pair]
    assert run(["evaluate", "m", "n", "--reverse", "--strict", *given]) == 0
    assert run(["evaluate", "m", "--corpus", "dates"]) == 0
    assert asked == [
        Wishes(
            models=(Path("m"), Path("n")),
            source=Path("s"),
            target=Path("t"),
            pairs=Path("p"),
            corpus="numbers",
            language="fr",
            reverse=True,
            strict=True,
            tokenize="none",
            beams=7,
            length_penalty=0.4,
            batch_size=9,
            device="cuda:1",
            out=Path("r.json"),
            figure=Path("f.svg"),
        ),
        Wishes(models=(Path("m"),), corpus="dates"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "requires an argument"),
        (["m"], "evaluate: got no test data; needed --source and --target, or --pairs, or --corpus."),
        (["m", "--source", "s"], "target: got none; needed both --source and --target."),
        (["m", "--corpus", "poems"], "corpus: got 'poems'"),
        (["m", "--pairs", "p", "--tokenize", "x"], "tokenize: got 'x'"),
        (["m", "--beams", "many"], "--beams"),
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


def test_json_is_all_there_is_on_standard_output(monkeypatch, capsys):
    class Comparison:
        def to_json(self):
            return '{"evaluations": []}\n'

    def tell(wishes):
        print("BLEU 12.3")
        return Comparison()

    monkeypatch.setattr(report, "run", tell)
    assert run(["evaluate", "m", "--corpus", "dates", "--json"]) == 0
    assert capsys.readouterr() == ('{"evaluations": []}\n', "BLEU 12.3\n")


@pytest.mark.parametrize(("flag", "number"), [("--beams", "100000"), ("--beams", "0"), ("--batch-size", "-1")])
def test_an_effort_without_end_is_refused_before_a_model_is_loaded(flag, number, capsys):
    assert run(["evaluate", "no model", "--corpus", "dates", flag, number]) == 2
    assert f"regard: {flag[2:].replace('-', '_')}: got {number}; needed from 1 to " in capsys.readouterr().err


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
