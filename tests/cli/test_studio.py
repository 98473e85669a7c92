"""`regard studio`: the verb hands over what it was given, and says in one line what it lacks."""

from pathlib import Path

import pytest

from regard.cli.app import run
from regard.studio import start


@pytest.mark.parametrize(
    ("given", "wished"),
    [
        ([], start.Wishes()),
        (["folder", "--port", "8100", "--no-browser"], start.Wishes(Path("folder"), 8100, False)),
        (["--cache", "models"], start.Wishes(cache=Path("models"))),
    ],
)
def test_the_flags_become_wishes(given, wished, monkeypatch):
    asked = []
    monkeypatch.setattr(start, "run", asked.append)
    assert run(["studio", *given]) == 0
    assert asked == [wished]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["no-such-folder"], "model: got no-such-folder, where there is no model.json"),
        (["--port", "99999"], "port: got 99999"),
        (["--port", "many"], "--port"),
    ],
)
def test_what_is_wrong_is_one_line(given, said, capsys, tmp_path):
    assert run(["studio", *given]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
