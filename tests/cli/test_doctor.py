"""`regard doctor`: what it says is so, for people and for programs."""

import json

import torch

import regard
from regard.cli import doctor
from regard.cli.app import run


def test_the_table_has_versions_extras_and_backends(capsys, monkeypatch):
    monkeypatch.setattr("regard.cli.doctor.extras", lambda: {"plots": "matplotlib 3"})
    assert run(["doctor"]) == 0
    printed = capsys.readouterr().out
    rows = dict(line.split(maxsplit=1) for line in printed.splitlines()[:8] if line and line[0] != " ")
    assert rows["torch"].strip() == torch.__version__
    assert rows["regard[plots]"].strip() == "matplotlib 3"
    assert "\ndot product, 2 x 16 x 16, on cpu: torch\n" in printed
    assert "  not triton: " in printed


def test_as_json_it_says_what_why_says(capsys):
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["torch"] == torch.__version__
    assert set(found) == {"machine", "extras", "backends"}
    large = next(one for one in found["backends"] if one["what"] == "kernel of the distance" and "2048" in one["size"])
    tokens = torch.zeros(4, 2048, 16)
    explained = regard.why(tokens, tokens, tokens, "laplacian")
    assert (large["backend"], large["error"], large["not"]) == (explained.backend, explained.bound, explained.refusals)


def test_it_is_the_verb(capsys):
    doctor.doctor(json=True)
    assert json.loads(capsys.readouterr().out)["machine"]["regard"] == regard.__version__
