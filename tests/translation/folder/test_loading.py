"""Loading: the model that was saved, or a refusal; never a crash, never another model."""

import json
import shutil
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from tests.refuses import refuses
from tests.translation.models import random_model, save_model

from regard.errors import RegardError
from regard.translation.folder import load, loading
from regard.translation.folder.page import FileFacts, Page, VocabularyFacts
from regard.translation.model import SCORES, Architecture

CHOICES = [
    *({"attention": name} for name in SCORES),
    {"heads": 3},
    {"unit": "lstm", "cell": "conditional", "layers": 2},
    {"joint": True, "tied": True},
    {"joint": True},
    {"tied": True, "attention_dim": 5},
]
FILES = ("model.json", "model.safetensors", "source.vocabulary", "target.vocabulary")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), random_model(facts={"length_penalty": 0.5}))


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def forge(folder, *, tensors=None, architecture=None, vocabularies=None, contents=()):
    """Change a model and make its page agree: what a careful forger would do."""
    page = Page.from_bytes((folder / "model.json").read_bytes(), "")
    files = {name: (folder / name).read_bytes() for name in page.files} | dict(contents)
    if tensors is not None:
        files["model.safetensors"] = write_tensors(tensors)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    forged = Page(
        page.regard,
        architecture or page.architecture,
        page.vocabularies | (vocabularies or {}),
        {name: FileFacts.of(content) for name, content in files.items()},
        page.facts,
    )
    (folder / "model.json").write_bytes(forged.to_bytes())


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_the_same_model_comes_back(tmp_path, choices):
    before = random_model(source_unit="characters" if choices.get("joint") else "words", **choices)
    after = load(save_model(tmp_path, before))
    source, lengths = torch.tensor([[4, 5, 6, 3], [7, 3, 0, 0]]), torch.tensor([4, 2])
    previous = torch.tensor([[2, 5, 6], [2, 7, 4]])
    assert torch.equal(after.model(source, lengths, previous), before.model(source, lengths, previous))
    names = [name for name, _ in before.model.named_parameters()]
    assert [name for name, _ in after.model.named_parameters()] == names, "what was shared is shared again"
    assert after.model.architecture == before.model.architecture
    assert not after.model.training
    assert after.source_vocabulary.to_bytes() == before.source_vocabulary.to_bytes()
    assert (after.source_vocabulary is after.target_vocabulary) == bool(choices.get("joint"))


def test_a_loaded_model_can_be_trained_further(folder):
    model = load(folder).model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.readout.weight.clone()
    model(torch.tensor([[4, 3]]), torch.tensor([2]), torch.tensor([[2]])).logsumexp(-1).sum().backward()
    optimiser.step()
    assert not torch.equal(model.readout.weight, before)
    assert load(folder).facts == {"length_penalty": 0.5}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FILES), st.data())
def test_a_flipped_or_cut_file_is_refused(saved, tmp_path, name, data):
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder)
    content = bytearray((folder / name).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        content = content[:place]
    (folder / name).write_bytes(content)
    with pytest.raises(RegardError, match=name):  # not `refuses`: each draw has a text of its own
        load(folder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.sampled_from(FILES[1:]), st.data())
def test_a_forged_file_loads_as_it_says_or_is_refused(saved, tmp_path, name, data):
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder)
    content = bytearray((folder / name).read_bytes())
    # The beginning of a safetensors file is its table of contents; behind it any number is a weight.
    place = data.draw(st.integers(0, min(len(content) - 1, 2000)))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        content = content[:place]
    forge(folder, contents={name: bytes(content)})
    try:
        found = load(folder)
    except RegardError:
        return
    assert found.model.architecture == load(saved).model.architecture
    assert len(found.source_vocabulary) == found.model.source_words.num_embeddings


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with refuses("model" if name == "model.json" else str(folder / name), name):
        load(folder)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with refuses("model", "model.json", "--out"):
        load(tmp_path)
    with refuses("model", "model.json"):
        load(tmp_path / "nowhere")
    (tmp_path / "model.json").mkdir()
    with refuses("model", "model.json"):
        load(tmp_path)


def test_the_refusal_says_what_differs(folder):
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    with refuses(str(weights), f"got {len(content) - 1} bytes", f"{len(content)} bytes"):
        load(folder)
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with refuses(str(weights), "content with another SHA-256", "copy the folder again"):
        load(folder)


def test_a_page_too_long_to_be_one_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(loading, "MOST_PAGE_BYTES", 100)
    with refuses(str(folder / "model.json"), "more than 100 bytes"):
        load(folder)


def test_tensors_that_are_not_the_architectures_are_refused(folder):
    tensors = read_tensors((folder / "model.safetensors").read_bytes())
    some = min(tensors)
    for changed, words in (
        ({name: tensor for name, tensor in tensors.items() if name != some}, f"no tensor '{some}'"),
        (tensors | {"spare": torch.ones(1)}, "a tensor too many 'spare'"),
        (tensors | {some: torch.ones(2, 3)}, f"{some} float32 (2, 3)"),
        (tensors | {some: tensors[some].half()}, f"{some} float16"),
    ):
        forge(folder, tensors=changed)
        with refuses(str(folder / "model.safetensors"), words):
            load(folder)


@pytest.mark.parametrize("name", ["embedding", "hidden", "attention_dim", "heads"])
def test_sizes_beyond_the_file_are_refused_before_memory_is_asked_for(folder, name):
    more = {"hidden": 2**16} if name == "heads" else {}
    forge(folder, architecture=Architecture(**{name: 2**16}, **more))
    with refuses(str(folder / "model.safetensors"), "larger than the file"):
        load(folder)


def test_another_architecture_is_refused(folder):
    forge(folder, architecture=Architecture(embedding=8, hidden=12, unit="lstm"))
    with refuses(str(folder / "model.safetensors"), "architecture"):
        load(folder)


def test_vocabularies_must_have_the_size_that_the_page_names(folder):
    forge(folder, vocabularies={"source.vocabulary": VocabularyFacts("characters", 99)})
    with refuses(str(folder / "source.vocabulary"), "9 ids", "99 ids, as many as the model has"):
        load(folder)
    forge(folder, vocabularies={"source.vocabulary": VocabularyFacts("runes", 9)})
    with refuses(str(folder / "source.vocabulary"), "'runes'", "'bpe' or"):
        load(folder)


def test_a_pickle_is_not_opened(folder):
    forge(folder, contents={"model.safetensors": b"\x80\x04cposix\nsystem\n(S'touch owned'\ntR."})
    with refuses(str(folder / "model.safetensors"), "no safetensors file"):
        load(folder)


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(folder, monkeypatch):
    new = random_model(9)
    read_page, moments = loading._read_page, []

    def page_and_then_a_new_model(where):
        written = read_page(where)
        if not moments:
            moments.append("replaced")
            save_model(folder, new)
        return written

    monkeypatch.setattr(loading, "_read_page", page_and_then_a_new_model)
    assert torch.equal(load(folder).model.readout.weight, new.model.readout.weight)
    assert json.loads((folder / "model.json").read_text())["facts"] == {}


def test_without_a_library_the_extra_is_named_and_the_file_is_not_blamed(saved, monkeypatch, tmp_path):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "safetensors", None)
        with refuses("model.safetensors", "no module named safetensors", '"regard[translation]"'):
            load(saved)
    folder = save_model(tmp_path, random_model(source_unit="bpe", texts=["ab cd abcd"] * 3))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "sentencepiece", None)
        with refuses("unit bpe", "no module named sentencepiece", '"regard[translation]"'):
            load(folder)
