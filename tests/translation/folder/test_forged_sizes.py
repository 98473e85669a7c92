"""Model folders whose page or files claim more than they hold: refused in one short sentence, before any work."""

import hashlib
import json
import shutil
import time

import pytest
import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from tests.translation.models import random_model, save_model

from regard.errors import RegardError
from regard.translation import Translator


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), random_model())


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def render(content):
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def forge(folder, files=(), **changes):
    """Change fields of the page, by table, and files of the folder; all digests agree."""
    page = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    del page["checksum"]
    for table, values in changes.items():
        page[table] |= values
    for name, content in dict(files).items():
        (folder / name).write_bytes(content)
        page["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    page["checksum"] = hashlib.sha256(render(page)).hexdigest()
    (folder / "model.json").write_bytes(render(page))


def refusal(folder):
    """The sentence with which the folder is refused, which must come quickly."""
    begin = time.perf_counter()
    with pytest.raises(RegardError) as caught:
        Translator.load(folder).translate(["one"])
    assert time.perf_counter() - begin < 5
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize("sizes", [{"hidden": 2**61 - 1, "heads": 2**60}, {"embedding": 10**40}, {"layers": 10**6}])
def test_an_architecture_too_large_for_any_model_is_refused(folder, sizes):
    forge(folder, architecture=sizes)
    assert f"{next(iter(sizes))} = {next(iter(sizes.values()))}; needed a whole number from 1 to" in refusal(folder)


def test_layers_are_looked_for_in_the_weights_before_a_model_is_built(folder):
    tensors = read_tensors((folder / "model.safetensors").read_bytes())
    many = tensors | {f"x{number}": torch.zeros(0) for number in range(2000)}
    forge(folder, {"model.safetensors": write_tensors(many)}, architecture={"layers": 100})
    assert "got no tensor 'encoder.onward.99....'; needed the 100 layers of the architecture" in refusal(folder)
