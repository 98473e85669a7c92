"""`model.json`: what was written is read, and nothing else is."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refuses import refuses

from regard.errors import RegardError
from regard.translation.folder.page import FORMAT, FileFacts, Page, VocabularyFacts
from regard.translation.model import Architecture

PAGE = Page(
    regard="0.1.0",
    architecture=Architecture(hidden=8),
    vocabularies={"source.vocabulary": VocabularyFacts("bpe", 40), "target.vocabulary": VocabularyFacts("words", 4)},
    files={
        name: FileFacts.of(name.encode()) for name in ("model.safetensors", "source.vocabulary", "target.vocabulary")
    },
    facts={"corpus": "Grüße", "length_penalty": 0.6, "recipe": {"epochs": [1, 2]}},
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
    assert Page.from_bytes(PAGE.to_bytes(), "here") == PAGE
    assert Page.from_bytes(forged(), "here") == PAGE


@given(st.data())
def test_a_flipped_or_cut_page_is_refused(data):
    written = bytearray(PAGE.to_bytes())
    place = data.draw(st.integers(0, len(written) - 1))
    if data.draw(st.booleans()):
        written[place] ^= data.draw(st.integers(1, 255))
    else:
        written = written[:place]
    with pytest.raises(RegardError, match=r"^here"):  # not `refuses`: each draw has a text of its own
        Page.from_bytes(bytes(written), "here")


@given(st.sampled_from(["format", "regard", "architecture", "vocabularies", "files", "facts"]), JSON)
def test_no_field_is_believed(field, value):
    try:
        page = Page.from_bytes(forged(**{field: value}), "here")
    except RegardError:
        return
    assert field in {"regard", "facts", "architecture"} or value == FORMAT
    assert field != "regard" or page.regard == value
    assert field != "facts" or page.facts == value
    assert field != "architecture" or page.architecture == Architecture(**value)


@pytest.mark.parametrize(
    ("changes", "argument", "word"),
    [
        ({"format": 2}, "here", "a model folder of format 2"),
        ({"format": 10**3000}, "here", "format beyond counting"),
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
        Page.from_bytes(forged(**changes), "here")


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"7", b"NaN", b"[" * 100_000, b'{"format": 1e999}', b'{"format": ' + b"9" * 5000 + b"}"],
)
def test_other_data_are_refused(data):
    with refuses("here"):
        Page.from_bytes(data, "here")


def test_what_json_could_say_but_we_would_not_write_is_refused():
    for fact in (b"NaN", b'"\\ud800"', b"[" * 3000 + b"]" * 3000):
        with refuses("here"):
            Page.from_bytes(PAGE.to_bytes().replace(b"0.6", fact), "here")


def test_a_younger_field_of_the_architecture_has_its_default():
    architecture = json.loads(PAGE.to_bytes())["architecture"]
    del architecture["heads"]
    assert Page.from_bytes(forged(architecture=architecture), "here") == PAGE


@pytest.mark.parametrize("fact", [float("nan"), {1, 2}, b"bytes", "\ud800"])
def test_facts_that_json_cannot_say_are_refused(fact):
    page = Page(PAGE.regard, PAGE.architecture, PAGE.vocabularies, PAGE.files, {"fact": fact})
    with refuses("facts", "something", "cannot", "JSON"):
        page.to_bytes()
