"""Model folders keep what was saved through interruptions, and damaged or forged ones are refused."""

import errno
import hashlib
import json
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from tests.refuses import refuses
from tests.translation.models import random_model, save_model

from regard.errors import RegardError
from regard.translation import Translator, model_folder
from regard.translation.model import SCORES, Architecture
from regard.translation.model_folder import (
    FORMAT,
    FileInfo,
    Manifest,
    TrainedModel,
    VocabularyInfo,
    shared_tensor_names,
    staged_path,
    vocabulary_files,
)
from regard.translation.vocabulary import learn_vocabulary


def test_a_joint_vocabulary_is_one_file():
    assert vocabulary_files(True) == ("joint.vocabulary",)
    assert vocabulary_files(False) == ("source.vocabulary", "target.vocabulary")


def test_a_file_waits_beside_the_one_it_replaces():
    assert staged_path(Path("model") / "model.json") == Path("model") / "model.json.incoming"


def test_a_joint_and_tied_model_has_one_table_of_words():
    model = random_model(joint=True, tied=True).model
    names = shared_tensor_names(model)
    assert ["source_embedding.weight", "target_embedding.weight", "output.weight"] in names
    assert sorted(name for each in names for name in each) == sorted(model.state_dict())
    assert len(names) == len(list(model.parameters()))


def test_a_model_that_shares_nothing_has_one_name_for_each():
    assert all(len(names) == 1 for names in shared_tensor_names(random_model().model))


PAGE = Manifest(
    regard="0.1.0",
    architecture=Architecture(hidden=8),
    vocabularies={"source.vocabulary": VocabularyInfo("bpe", 40), "target.vocabulary": VocabularyInfo("words", 4)},
    files={
        name: FileInfo.of(name.encode()) for name in ("model.safetensors", "source.vocabulary", "target.vocabulary")
    },
    metadata={"corpus": "Grüße", "length_penalty": 0.6, "recipe": {"epochs": [1, 2]}},
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def every(names, value):
    return {name: dict(value) for name in names}


def forged(**changes):
    """A page that agrees with its checksum all the same: only the checks of its fields can refuse it."""
    content = json.loads(PAGE.to_bytes()) | changes
    content = {name: value for name, value in content.items() if value is not ... and name != "checksum"}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return (json.dumps({**content, "checksum": checksum}, indent=1, ensure_ascii=False) + "\n").encode()


def test_what_was_written_is_read():
    assert Manifest.from_bytes(PAGE.to_bytes(), "here") == PAGE
    assert Manifest.from_bytes(forged(), "here") == PAGE


@given(st.data())
def test_a_flipped_or_cut_page_is_refused(data):
    written = bytearray(PAGE.to_bytes())
    place = data.draw(st.integers(0, len(written) - 1))
    if data.draw(st.booleans()):
        written[place] ^= data.draw(st.integers(1, 255))
    else:
        written = written[:place]
    with pytest.raises(RegardError, match=r"^here"):  # not `refuses`: each draw has a text of its own
        Manifest.from_bytes(bytes(written), "here")


@given(st.sampled_from(["format", "regard", "architecture", "vocabularies", "files", "facts"]), JSON)
def test_no_field_is_believed(field, value):
    try:
        page = Manifest.from_bytes(forged(**{field: value}), "here")
    except RegardError:
        return
    assert field in {"regard", "facts", "architecture"} or value in {1, FORMAT}
    assert field != "regard" or page.regard == value
    assert field != "facts" or page.metadata == value
    assert field != "architecture" or page.architecture == Architecture(**value)


@pytest.mark.parametrize(
    ("changes", "argument", "word"),
    [
        ({"format": 3}, "here", "a model folder of format 3"),
        ({"format": 10**3000}, "here", "format above 999999999"),
        ({"format": True}, "here", "no format number"),
        ({"format": ...}, "here", "no format number"),
        ({"facts": ...}, "here", "missing or too many: 'facts'"),
        ({"extra": 1}, "here", "missing or too many: 'extra'"),
        ({"facts": [1]}, "here, facts", "JSON of type list"),
        ({"regard": 1}, "here, regard", "JSON of type int"),
        ({"architecture": {"hidden": 0}}, "here, architecture", "hidden = 0"),
        ({"architecture": {"attention": "magic"}}, "here, architecture", "attention = 'magic'"),
        ({"architecture": {"width": 3}}, "here, architecture", "unknown fields: 'width'"),
        ({"files": {"../../etc/passwd": {}}}, "here, files", "1 names"),
        ({"vocabularies": {"joint.vocabulary": {}}}, "here, vocabularies", "1 names"),
        (
            {"vocabularies": every(PAGE.vocabularies, {"unit": "bpe", "size": 3})},
            "here, vocabularies, source.vocabulary, size",
            "another value",
        ),
        (
            {"vocabularies": every(PAGE.vocabularies, {"unit": 7, "size": 9})},
            "here, vocabularies, source.vocabulary, unit",
            "JSON of type int",
        ),
        (
            {"files": every(PAGE.files, {"size": 10**30, "sha256": "0" * 64})},
            "here, files, model.safetensors, size",
            "another value",
        ),
        (
            {"files": every(PAGE.files, {"size": 1.0, "sha256": "0" * 64})},
            "here, files, model.safetensors, size",
            "another value",
        ),
        (
            {"files": every(PAGE.files, {"size": 1, "sha256": "0" * 63})},
            "here, files, model.safetensors, sha256",
            "other text",
        ),
    ],
)
def test_each_field_is_named(changes, argument, word):
    with refuses(argument, word):
        Manifest.from_bytes(forged(**changes), "here")


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"7", b"NaN", b"[" * 100_000, b'{"format": 1e999}', b'{"format": ' + b"9" * 5000 + b"}"],
)
def test_other_data_are_refused(data):
    with refuses("here"):
        Manifest.from_bytes(data, "here")


def test_what_json_could_say_but_we_would_not_write_is_refused():
    for fact in (b"NaN", b'"\\ud800"', b"[" * 3000 + b"]" * 3000):
        with refuses("here"):
            Manifest.from_bytes(PAGE.to_bytes().replace(b"0.6", fact), "here")


def test_a_younger_field_of_the_architecture_has_its_default():
    architecture = json.loads(PAGE.to_bytes())["architecture"]
    del architecture["heads"]
    assert Manifest.from_bytes(forged(architecture=architecture), "here") == PAGE


@pytest.mark.parametrize("fact", [float("nan"), {1, 2}, b"bytes", "\ud800"])
def test_facts_that_json_cannot_say_are_refused(fact):
    page = Manifest(PAGE.regard, PAGE.architecture, PAGE.vocabularies, PAGE.files, {"fact": fact})
    with refuses("metadata", "JSON does not have"):
        page.to_bytes()


class PowerCutError(Exception):
    """The test's own end of the world."""


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def cut_after(monkeypatch, count, failure):
    """Let so many writes, renames and flushes succeed, then fail."""
    left = [count]

    def limited(act):
        def either(*arguments, **options):
            if left[0] == 0:
                raise failure
            left[0] -= 1
            return act(*arguments, **options)

        return either

    monkeypatch.setattr(Path, "replace", limited(Path.replace))
    monkeypatch.setattr(Path, "unlink", limited(Path.unlink))
    monkeypatch.setattr(model_folder, "_write", limited(model_folder._write))
    monkeypatch.setattr(os, "fsync", limited(lambda handle: None))
    return left


@pytest.mark.parametrize("joint", [False, True])
def test_a_cut_at_any_moment_leaves_a_whole_model(tmp_path, monkeypatch, joint):
    old, new, third = (random_model(seed, joint=joint) for seed in (1, 2, 3))
    new = type(new)(new.model, new.source_vocabulary, new.target_vocabulary, {"seed": 2})
    seen = set()
    for count in range(100):
        folder = save_model(tmp_path / str(count), old)
        with monkeypatch.context() as patch:
            left = cut_after(patch, count, PowerCutError())
            try:
                save_model(folder, new)
                complete = left[0] > 0
            except PowerCutError:
                complete = False
        found = TrainedModel.load(folder)
        expected = new if found.metadata else old
        assert same(weights(found.model), weights(expected.model))
        seen.add(bool(found.metadata))
        save_model(folder, third)  # whatever was left behind is no obstacle
        assert same(weights(TrainedModel.load(folder).model), weights(third.model))
        assert not list(folder.glob("*.incoming"))
        if complete:
            break
    assert complete
    assert seen == {False, True}


def test_two_cuts_in_a_row_leave_a_whole_model(tmp_path, monkeypatch):
    old, new, third = (random_model(seed) for seed in (1, 2, 3))
    for first in range(0, 20, 2):
        for second in range(0, 20, 4):
            folder = save_model(tmp_path / f"{first}-{second}", old)
            for count, model in ((first, new), (second, third)):
                with monkeypatch.context() as patch:
                    cut_after(patch, count, PowerCutError())
                    with suppress(PowerCutError):
                        save_model(folder, model)
            found = weights(TrainedModel.load(folder).model)
            assert any(same(found, weights(one.model)) for one in (old, new, third))


def test_a_full_disk_is_a_clear_error_and_the_old_model_survives(tmp_path, monkeypatch):
    old = random_model(1)
    folder = save_model(tmp_path, old)
    with monkeypatch.context() as patch:
        cut_after(patch, 2, OSError(errno.ENOSPC, "No space left on device"))
        with refuses("folder", "device", "loaded", "space"):
            save_model(folder, random_model(2))
    assert same(weights(TrainedModel.load(folder).model), weights(old.model))


def test_a_shared_tensor_is_stored_once(tmp_path):
    apart, tied = random_model(joint=False), random_model(joint=True, tied=True)
    sizes = [
        (save_model(tmp_path / name, one) / "model.safetensors").stat().st_size
        for name, one in (("apart", apart), ("tied", tied))
    ]
    count = sum(parameter.numel() for parameter in tied.model.parameters())
    assert 4 * count < sizes[1] < 4 * count + 4000 < sizes[0] + 4000


def test_other_files_of_the_folder_are_left_alone_and_old_vocabularies_go(tmp_path):
    save_model(tmp_path, random_model(joint=False))
    (tmp_path / "log.jsonl").write_text("kept")
    save_model(tmp_path, random_model(joint=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "joint.vocabulary",
        "log.jsonl",
        "model.json",
        "model.safetensors",
    ]


def test_the_same_model_is_the_same_folder(tmp_path):
    for name in ("one", "two"):
        save_model(tmp_path / name, random_model(5, metadata={"corpus": "toy"}))
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert json.loads((tmp_path / "one" / "model.json").read_text())["facts"] == {"corpus": "toy"}


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    one, joint = random_model(), random_model(joint=True)
    words = learn_vocabulary("characters", ["abcdefgh"])
    model, source, target = one.model, one.source_vocabulary, one.target_vocabulary
    folder = tmp_path / "model"
    with refuses("source_vocabulary", f"{len(words)} ids", f"needed {len(source)}"):
        TrainedModel(model, words, target, {}).save(folder)
    with refuses("target_vocabulary", f"{len(words)} ids"):
        TrainedModel(model, source, words, {}).save(folder)
    other = learn_vocabulary("characters", ["vwxyz"])
    with refuses("target_vocabulary", "vocabulary", "another", "source"):
        TrainedModel(joint.model, joint.source_vocabulary, other, {}).save(folder)
    with refuses("metadata", "JSON does not have"):
        TrainedModel(model, source, target, {"loss": torch.ones(1)}).save(folder)
    with refuses("model", "torch.float64", "torch.float32"):
        TrainedModel(random_model().model.double(), source, target, {}).save(folder)
    assert not folder.exists()
    taken = tmp_path / "taken"
    taken.touch()
    with refuses("folder", "exists", "taken", "File"):
        TrainedModel(model, source, target, {}).save(taken)


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
    return save_model(tmp_path_factory.mktemp("model"), random_model(metadata={"length_penalty": 0.5}))


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def forge(folder, *, tensors=None, architecture=None, vocabularies=None, contents=()):
    """Change a model and make its page agree: what a careful forger would do."""
    page = Manifest.from_bytes((folder / "model.json").read_bytes(), "")
    files = {name: (folder / name).read_bytes() for name in page.files} | dict(contents)
    if tensors is not None:
        files["model.safetensors"] = write_tensors(tensors)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    forged = Manifest(
        page.regard,
        architecture or page.architecture,
        page.vocabularies | (vocabularies or {}),
        {name: FileInfo.of(content) for name, content in files.items()},
        page.metadata,
    )
    (folder / "model.json").write_bytes(forged.to_bytes())


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_the_same_model_comes_back(tmp_path, choices):
    before = random_model(source_unit="characters" if choices.get("joint") else "words", **choices)
    after = TrainedModel.load(save_model(tmp_path, before))
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
    model = TrainedModel.load(folder).model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.readout.weight.clone()
    model(torch.tensor([[4, 3]]), torch.tensor([2]), torch.tensor([[2]])).logsumexp(-1).sum().backward()
    optimiser.step()
    assert not torch.equal(model.readout.weight, before)
    assert TrainedModel.load(folder).metadata == {"length_penalty": 0.5}


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
        TrainedModel.load(folder)


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
        found = TrainedModel.load(folder)
    except RegardError:
        return
    assert found.model.architecture == TrainedModel.load(saved).model.architecture
    assert len(found.source_vocabulary) == found.model.source_embedding.num_embeddings


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with refuses("model" if name == "model.json" else str(folder / name), name):
        TrainedModel.load(folder)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with refuses("model", "model.json", "--out"):
        TrainedModel.load(tmp_path)
    with refuses("model", "model.json"):
        TrainedModel.load(tmp_path / "nowhere")
    (tmp_path / "model.json").mkdir()
    with refuses("model", "model.json"):
        TrainedModel.load(tmp_path)


def test_the_refusal_says_what_differs(folder):
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    with refuses(str(weights), f"got {len(content) - 1} bytes", f"{len(content)} bytes"):
        TrainedModel.load(folder)
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with refuses(str(weights), "content with another SHA-256", "copy the folder again"):
        TrainedModel.load(folder)


def test_a_page_too_long_to_be_one_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(model_folder, "MAX_MANIFEST_BYTES", 100)
    with refuses(str(folder / "model.json"), "more than 100 bytes"):
        TrainedModel.load(folder)


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
            TrainedModel.load(folder)


@pytest.mark.parametrize("name", ["embedding", "hidden", "attention_dim", "heads"])
def test_sizes_beyond_the_file_are_refused_before_memory_is_asked_for(folder, name):
    more = {"hidden": 2**16} if name == "heads" else {}
    forge(folder, architecture=Architecture(**{name: 2**16}, **more))
    with refuses(str(folder / "model.safetensors"), "larger than the file"):
        TrainedModel.load(folder)


def test_another_architecture_is_refused(folder):
    forge(folder, architecture=Architecture(embedding=8, hidden=12, unit="lstm"))
    with refuses(str(folder / "model.safetensors"), "architecture"):
        TrainedModel.load(folder)


def test_vocabularies_must_have_the_size_that_the_page_names(folder):
    forge(folder, vocabularies={"source.vocabulary": VocabularyInfo("characters", 99)})
    with refuses(str(folder / "source.vocabulary"), "9 ids", "99 ids, as many as the model has"):
        TrainedModel.load(folder)
    forge(folder, vocabularies={"source.vocabulary": VocabularyInfo("runes", 9)})
    with refuses(str(folder / "source.vocabulary"), "'runes'", "'bpe' or"):
        TrainedModel.load(folder)


def test_a_pickle_is_not_opened(folder):
    forge(folder, contents={"model.safetensors": b"\x80\x04cposix\nsystem\n(S'touch owned'\ntR."})
    with refuses(str(folder / "model.safetensors"), "no safetensors file"):
        TrainedModel.load(folder)


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(folder, monkeypatch):
    new = random_model(9)
    read_page, moments = model_folder._read_manifest, []

    def page_and_then_a_new_model(where):
        written = read_page(where)
        if not moments:
            moments.append("replaced")
            save_model(folder, new)
        return written

    monkeypatch.setattr(model_folder, "_read_manifest", page_and_then_a_new_model)
    assert torch.equal(TrainedModel.load(folder).model.readout.weight, new.model.readout.weight)
    assert json.loads((folder / "model.json").read_text())["facts"] == {}


def test_without_a_library_the_extra_is_named_and_the_file_is_not_blamed(saved, monkeypatch, tmp_path):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "safetensors", None)
        with refuses("model.safetensors", "no module named safetensors", '"regard[translation]"'):
            TrainedModel.load(saved)
    folder = save_model(tmp_path, random_model(source_unit="bpe", texts=["ab cd abcd"] * 3))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "sentencepiece", None)
        with refuses("unit bpe", "no module named sentencepiece", '"regard[translation]"'):
            TrainedModel.load(folder)


def render(content):
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def rewritten(folder, files=(), **changes):
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
    rewritten(folder, architecture=sizes)
    check_refused(
        folder, f"{folder / 'model.json'}, architecture", f"{next(iter(sizes))} = {next(iter(sizes.values()))}"
    )


def test_layers_are_looked_for_in_the_weights_before_a_model_is_built(folder):
    tensors = read_tensors((folder / "model.safetensors").read_bytes())
    many = tensors | {f"x{number}": torch.zeros(0) for number in range(2000)}
    rewritten(folder, {"model.safetensors": write_tensors(many)}, architecture={"layers": 100})
    check_refused(folder, folder / "model.safetensors", "no tensor 'encoder.forward_layers.99....'", "the 100 layers")


def test_a_long_word_of_the_page_is_shortened(folder):
    rewritten(folder, architecture={"unit": "a" * 10**6})
    check_refused(folder, f"{folder / 'model.json'}, architecture", "aaa ... (1,000,002 characters) ... aaa")


def test_a_long_shape_is_shortened(folder):
    tensors = read_tensors((folder / "model.safetensors").read_bytes())
    long = torch.zeros(1).reshape([1] * 50_000)
    rewritten(folder, {"model.safetensors": write_tensors(tensors | {"readout.weight": long})})
    check_refused(folder, folder / "model.safetensors", "readout.weight float32 (1, 1, 1")


def test_a_length_penalty_beyond_every_float_is_refused(folder):
    rewritten(folder, facts={"length_penalty": 10**400})
    check_refused(folder, "length_penalty", "1000")


def test_the_number_of_tokens_is_compared_before_they_are_read(folder):
    tokens = [f"{number} is no token" for number in range(10**5)]  # each would be refused
    rewritten(folder, {"source.vocabulary": json.dumps({"unit": "characters", "tokens": tokens}).encode()})
    check_refused(folder, folder / "source.vocabulary", "100004 ids", "9 ids, as many as the model has")


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "source.vocabulary"])
def test_a_link_to_itself_is_refused(folder, name):
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    check_refused(folder, "model", name)


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_pipe_or_device_that_is_said_to_be_empty_is_not_read(folder, kind):
    path = folder / "source.vocabulary"
    rewritten(folder, {path.name: b""})
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    check_refused(folder, "model", "a pipe or a device, not a regular file")


@pytest.mark.parametrize("name", ["additive", "joint", "lstm-conditional"])
def test_a_folder_of_version_0_1_translates_as_it_did(name):
    """The folders and `expected.json` were written by version 0.1, whose tensors have other names (format 1)."""
    folder = Path(__file__).parent / "version_0_1" / name
    wanted = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    translator = Translator.load(folder)
    found = translator.translate(wanted["sentences"], beams=5)
    assert [one.text for one in found] == [one["text"] for one in wanted["beam_5"]]
    assert [one.score for one in found] == pytest.approx([one["score"] for one in wanted["beam_5"]], abs=1e-4)
    assert [one.text for one in translator.translate(wanted["sentences"], beams=1)] == wanted["greedy"]
    forced = translator.force(wanted["sentences"], wanted["targets"])
    assert [one.log_probability for one in forced] == pytest.approx(wanted["forced"], abs=1e-4)
    torch.testing.assert_close(forced[0].weights, torch.tensor(wanted["weights"]), rtol=0, atol=1e-5)
