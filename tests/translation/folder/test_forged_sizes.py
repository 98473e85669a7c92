"""Model folders whose page or files claim more than they hold: refused in one short sentence, before any work."""

import hashlib
import json
import os
import shutil
import time

import pytest
import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from tests.refuses import refuses
from tests.translation.models import random_model, save_model

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


def check_refused(folder, argument, *words):
    """The folder is refused quickly, in a text that is not long."""
    begin = time.perf_counter()
    with refuses(str(argument), *words) as caught:
        Translator.load(folder).translate(["one"])
    assert time.perf_counter() - begin < 5
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("sizes", [{"hidden": 2**61 - 1, "heads": 2**60}, {"embedding": 10**40}, {"layers": 10**6}])
def test_an_architecture_too_large_for_any_model_is_refused(folder, sizes):
    forge(folder, architecture=sizes)
    check_refused(
        folder, f"{folder / 'model.json'}, architecture", f"{next(iter(sizes))} = {next(iter(sizes.values()))}"
    )


def test_layers_are_looked_for_in_the_weights_before_a_model_is_built(folder):
    tensors = read_tensors((folder / "model.safetensors").read_bytes())
    many = tensors | {f"x{number}": torch.zeros(0) for number in range(2000)}
    forge(folder, {"model.safetensors": write_tensors(many)}, architecture={"layers": 100})
    check_refused(folder, folder / "model.safetensors", "no tensor 'encoder.onward.99....'", "the 100 layers")


def test_a_long_word_of_the_page_is_shortened(folder):
    forge(folder, architecture={"unit": "a" * 10**6})
    check_refused(folder, f"{folder / 'model.json'}, architecture", "aaa ... (1,000,002 characters) ... aaa")


def test_a_long_shape_is_shortened(folder):
    tensors = read_tensors((folder / "model.safetensors").read_bytes())
    long = torch.zeros(1).reshape([1] * 50_000)
    forge(folder, {"model.safetensors": write_tensors(tensors | {"readout.weight": long})})
    check_refused(folder, folder / "model.safetensors", "readout.weight float32 (1, 1, 1")


def test_a_length_penalty_beyond_every_float_is_refused(folder):
    forge(folder, facts={"length_penalty": 10**400})
    check_refused(folder, "length_penalty", "1000")


def test_the_number_of_tokens_is_compared_before_they_are_read(folder):
    tokens = [f"{number} is no token" for number in range(10**5)]  # each would be refused
    forge(folder, {"source.vocabulary": json.dumps({"unit": "characters", "tokens": tokens}).encode()})
    check_refused(folder, folder / "source.vocabulary", "100004 ids", "9 ids, as many as the model has")


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "source.vocabulary"])
def test_a_link_to_itself_is_refused(folder, name):
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    check_refused(folder, "model", name)


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_pipe_or_device_that_is_said_to_be_empty_is_not_read(folder, kind):
    path = folder / "source.vocabulary"
    forge(folder, {path.name: b""})
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    check_refused(folder, "model", "a pipe or a device, not a regular file")
