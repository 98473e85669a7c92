"""Loading executes nothing: no call in the source could unpickle a file, and a hostile one is refused unread."""

import ast
import hashlib
import io
import os
import pickle
from pathlib import Path

import pytest
import torch
from tests.refuses import refuses
from tests.translation.models import random_model, save_model
from tests.translation.test_model_folder import forge

from regard.regression import csv_columns
from regard.translation import Translator, checkpoint
from regard.translation.dataset import read_pairs
from regard.translation.model_folder import TrainedModel
from regard.translation.recipe import Recipe

SOURCE = Path(__file__).parents[2] / "src" / "regard"
# What executes what it reads. torch.load counts unless weights_only=True is written beside it, numpy.load where
# allow_pickle is.
EXECUTES = {
    *(f"{module}.{name}" for module in ("pickle", "_pickle", "dill", "cloudpickle") for name in ("load", "loads")),
    "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open", "joblib.load", "pandas.read_pickle",
    "yaml.load", "yaml.unsafe_load", "torch.jit.load", "torch.hub.load", "runpy.run_path", "eval", "exec",
}  # fmt: skip
# The tour's own workers send it their results, as bytes through a pipe; the errata are lines of the source itself.
ALLOWED = {"tour/trainings/side_by_side.py": ["pickle.loads"], "tour/stations/errata.py": ["eval"]}


def executing(code: str) -> list[str]:
    """The calls in a source text that could execute what they read."""
    tree, names = ast.parse(code), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return [said for node in ast.walk(tree) if isinstance(node, ast.Call) and (said := _judged(node, names))]


def _judged(call: ast.Call, names: dict[str, str]) -> str | None:
    first, dot, rest = ast.unparse(call.func).partition(".")
    function = names.get(first, first) + dot + rest
    written = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if function in ("torch.load", "torch.serialization.load") and written.get("weights_only") != "True":
        return function
    if function in ("numpy.load", "np.load") and written.get("allow_pickle", "False") != "False":
        return function
    return function if function in EXECUTES else None


@pytest.mark.parametrize(
    "code",
    [
        "import pickle\npickle.load(f)",
        "import pickle as p\np.loads(b)",
        "from pickle import loads as read\nread(b)",
        "import torch\ntorch.load(f)",
        "from torch import load\nload(f, weights_only=False)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "eval(text)",
    ],
)
def test_such_a_call_is_found(code):
    assert len(executing(code)) == 1


def test_what_executes_nothing_is_not_accused():
    assert executing("import torch, json\ntorch.load(f, weights_only=True)\njson.loads(t)\nmodel.eval()") == []


def test_no_call_in_the_source_executes_what_it_reads():
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if calls := executing(path.read_text(encoding="utf-8")):
            found[str(path.relative_to(SOURCE))] = calls
    assert found == ALLOWED


class Bomb:
    """Makes a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


def pickled() -> bytes:
    return pickle.dumps({"weight": Bomb()}, protocol=2)


def saved() -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": Bomb()}, buffer)
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Nothing may have exploded here."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / "exploded").exists()


def test_the_bomb_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(os.path.realpath(tmp_path)).parent)
    pickle.loads(pickled())
    Path("exploded").rmdir()


@pytest.mark.parametrize("payload", [pickled, saved])
@pytest.mark.parametrize("unit", ["characters", "bpe"])
@pytest.mark.parametrize("name", ["model.safetensors", "source.vocabulary", "target.vocabulary"])
def test_a_hostile_file_in_a_model_folder(place, name, unit, payload):
    folder = save_model(place / "model", random_model(source_unit=unit, texts=["ab cd abcd"] * 3))
    forge(folder, contents={name: payload()})
    with refuses(str(folder / name)):
        TrainedModel.load(folder)


@pytest.mark.parametrize("payload", [pickled, saved])
def test_a_hostile_page_of_a_model(place, payload):
    folder = save_model(place / "model", random_model())
    (folder / "model.json").write_bytes(payload())
    with refuses(str(folder / "model.json"), "JSON"):
        Translator.load(folder)


@pytest.mark.parametrize("payload", [pickled, saved])
def test_a_hostile_checkpoint(place, payload):
    content = payload()
    (place / checkpoint.NAME).write_bytes(hashlib.sha256(content).digest() + content)
    with refuses("out", "checkpoint", "damaged"):
        checkpoint.load(place)


@pytest.mark.parametrize("payload", [pickled, saved])
def test_hostile_pairs_recipe_and_table(place, payload):
    file = place / "file"
    file.write_bytes(payload())
    with refuses("pairs"):
        list(read_pairs(file))
    with refuses("recipe"):
        Recipe.read(file)
    with refuses("file"):
        csv_columns.read_columns("file", file, [("x", "x")])
