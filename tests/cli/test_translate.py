"""`regard translate`: the verb hands over what it was given; in a pipe it behaves as a filter should."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.translation.models import random_model, save_model

from regard.cli.app import run
from regard.translation import piping
from regard.translation.piping import Wishes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), random_model())


def test_every_flag_arrives(monkeypatch):
    asked = []
    monkeypatch.setattr(piping, "run", asked.append)
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
        Wishes(
            models=(Path("m"), Path("n"), Path("p")),
            sentences=("one sentence", "and one more"),
            output=Path("o"),
            alignment="json",
            alignment_of="tokens",
            alignment_out=Path("a"),
            beams=7,
            nbest=3,
            length_penalty=0.4,
            shortest=4,
            longest=50,
            batch_size=9,
            device="cuda:1",
        ),
        Wishes(models=(Path("m"),), input=Path("file")),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "requires an argument"),
        (["nowhere", "ab"], "model: got nowhere, where there is no model.json; needed the folder of a trained model."),
        (["nowhere", "ab", "--input", "x"], "input: got --input x and sentences"),
        (["nowhere", "ab", "--beams", "many"], "--beams"),
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
