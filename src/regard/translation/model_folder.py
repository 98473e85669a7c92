"""A trained model as a folder: weights, vocabularies and metadata, saved atomically and read without trust."""

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from regard import __version__
from regard.errors import RegardError
from regard.translation.extras import MissingPackageError, extra
from regard.translation.model import Architecture, EncoderDecoder
from regard.translation.text import read_regular
from regard.translation.vocabulary import COUNT, Vocabulary
from regard.translation.vocabulary import load as load_vocabulary

PAGE = "model.json"
WEIGHTS = "model.safetensors"
SOURCE = "source.vocabulary"
TARGET = "target.vocabulary"
JOINT = "joint.vocabulary"
INCOMING = ".incoming"

# A page of facts is a few kilobytes; what is longer is not one, and is not read.
MOST_PAGE_BYTES = 2**24


def vocabulary_files(joint: bool) -> tuple[str, ...]:
    """One file for both languages, or one for each."""
    return (JOINT,) if joint else (SOURCE, TARGET)


def incoming(path: Path) -> Path:
    """Where a file waits until the page that names it has been written (see `saving`)."""
    return path.with_name(path.name + INCOMING)


def names_of_each(model: nn.Module) -> list[list[str]]:
    """The names in the model's state of each of its tensors, in order of their first."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return list(names.values())


FORMAT = 2  # version 0.1 wrote format 1, whose tensors have other names
FORMAT_1_NAMES = {
    "source_words.": "source_embedding.",
    "target_words.": "target_embedding.",
    "encoder.onward.": "encoder.forward_layers.",
    "encoder.backward_.": "encoder.backward_layers.",
    "decoder.first.": "decoder.init_state.",
    "decoder.gates.weight": "decoder.cell.weight_ih",
    "decoder.gates.bias": "decoder.cell.bias_ih",
    "decoder.word_gates.weight": "decoder.cell.weight_ih",
    "decoder.word_gates.bias": "decoder.cell.bias_ih",
    "decoder.unit.recurrent.weight": "decoder.cell.weight_hh",
    "decoder.unit.recurrent.bias": "decoder.cell.bias_hh",
    "decoder.context_gates.weight": "decoder.second_cell.weight_ih",
    "decoder.context_gates.bias": "decoder.second_cell.bias_ih",
    "decoder.second_unit.recurrent.weight": "decoder.second_cell.weight_hh",
    "decoder.second_unit.recurrent.bias": "decoder.second_cell.bias_hh",
}
"""Beginnings of the tensors' names in format 1, and what they are now."""
MOST_BYTES = 2**50  # of one file; no number on the page is trusted further than this
KEYS = {"format", "regard", "architecture", "vocabularies", "files", "facts", "checksum"}


@dataclass(frozen=True)
class FileFacts:
    """The length of a file in bytes, and its SHA-256 in hexadecimal digits."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> "FileFacts":
        """Those of a file with this content."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class VocabularyFacts:
    """The unit of a vocabulary ("bpe", "characters" or "words"), and how many ids it has."""

    unit: str
    size: int


@dataclass(frozen=True)
class Page:
    """The whole page.

    regard: the version of the library that wrote it.
    vocabularies: by file name.
    files: every other file of the folder, by name.
    facts: what the training wished to keep: any JSON.
    format: of the folder, 1 where version 0.1 wrote it.
    """

    regard: str
    architecture: Architecture
    vocabularies: dict[str, VocabularyFacts]
    files: dict[str, FileFacts]
    facts: dict[str, Any]
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """The page as it is written."""
        content = {"format": self.format, **asdict(self)}
        try:
            return _render({**content, "checksum": _checksum(content)})
        except (TypeError, ValueError, RecursionError) as refusal:
            raise RegardError(
                "facts",
                got=f"something that JSON cannot say ({refusal})",
                needed="names with text, finite numbers, true, false, None, lists and dicts of them",
                repair="Convert tensors to numbers and paths to text.",
            ) from None

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Page":
        """Read a page, or refuse it with the reason.

        where: the path of the file, for the refusal.
        """
        try:
            content = json.loads(data.decode())
        except (ValueError, RecursionError):
            raise damaged(where, "text that is not JSON", "the page of a model") from None
        if not isinstance(content, dict):
            raise damaged(where, f"JSON of type {type(content).__name__}", "an object, the page of a model")
        _check_format(content, where)
        if set(content) != KEYS:
            wrong = ", ".join(sorted(map(repr, KEYS ^ set(content))))
            raise damaged(where, f"fields that are missing or too many: {wrong}", f"exactly {', '.join(sorted(KEYS))}")
        checksum = content.pop("checksum")
        if not _agrees(content, checksum, data):
            raise damaged(where, "a page that does not agree with its own checksum", "the page as it was written")
        return cls(
            regard=_text(content["regard"], f"{where}, regard"),
            architecture=(architecture := _architecture(content["architecture"], f"{where}, architecture")),
            vocabularies=_vocabularies(content["vocabularies"], architecture.joint, f"{where}, vocabularies"),
            files=_files(content["files"], architecture.joint, f"{where}, files"),
            facts=_object(content["facts"], f"{where}, facts"),
            format=content["format"],
        )


def damaged(where: str, got: str, needed: str) -> RegardError:
    """The refusal of a file of a model folder."""
    repair = "The file was damaged or changed after it was saved; copy the folder again, or train or save it anew."
    return RegardError(where, got=got, needed=needed, repair=repair)


def _render(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _checksum(content: dict[str, Any]) -> str:
    """Of all fields but the checksum itself. It shows damage; it is no signature."""
    return hashlib.sha256(_render(content)).hexdigest()


def _agrees(content: dict[str, Any], checksum: object, data: bytes) -> bool:
    """Whether the page is, byte for byte, what `to_bytes` writes of this content."""
    try:
        return checksum == _checksum(content) and data == _render({**content, "checksum": checksum})
    except (ValueError, RecursionError):  # NaN, half a character, a tower of lists: nothing that we write
        return False


def _check_format(content: dict[str, Any], where: str) -> None:
    version = content.get("format")
    if _is_whole(version) and version > FORMAT:
        raise RegardError(
            where,
            got=f"a model folder of format {version if version < 10**9 else 'beyond counting'}",
            needed=f"format {FORMAT}, the newest that this version of regard reads",
            repair="Update regard with pip install --upgrade regard.",
        )
    if not _is_whole(version) or not 1 <= version <= FORMAT:
        raise damaged(where, "no format number that regard has ever written", f'"format": {FORMAT}')


def _architecture(content: object, where: str) -> Architecture:
    found = _object(content, where)
    unknown = found.keys() - {field.name for field in fields(Architecture)}
    if unknown:  # a field that is missing is younger than the page, and its default is what the model had
        wrong = ", ".join(sorted(map(repr, unknown)))[:80]
        raise damaged(where, f"unknown fields: {wrong}", "the fields of an Architecture")
    try:
        return Architecture(**found)
    except RegardError as refusal:
        raise damaged(where, f"{refusal.argument} = {refusal.got}", refusal.needed) from None


def _vocabularies(content: object, joint: bool, where: str) -> dict[str, VocabularyFacts]:
    found = _named(content, vocabulary_files(joint), where)
    result = {}
    for name, facts in found.items():
        here = f"{where}, {name}"
        entry = _named(facts, ("unit", "size"), here)
        size = _whole(entry["size"], COUNT, MOST_BYTES, f"{here}, size")
        result[name] = VocabularyFacts(_text(entry["unit"], f"{here}, unit"), size)
    return result


def _files(content: object, joint: bool, where: str) -> dict[str, FileFacts]:
    found = _named(content, (WEIGHTS, *vocabulary_files(joint)), where)
    result = {}
    for name, facts in found.items():
        here = f"{where}, {name}"
        entry = _named(facts, ("size", "sha256"), here)
        digest = _text(entry["sha256"], f"{here}, sha256")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise damaged(f"{here}, sha256", "other text", "64 hexadecimal digits")
        result[name] = FileFacts(_whole(entry["size"], 0, MOST_BYTES, f"{here}, size"), digest)
    return result


def _named(content: object, names: tuple[str, ...], where: str) -> dict[str, Any]:
    found = _object(content, where)
    if set(found) != set(names):
        raise damaged(where, f"{len(found)} names, not the right ones", f"exactly {', '.join(names)}")
    return found


def _object(content: object, where: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise damaged(where, f"JSON of type {type(content).__name__}", "an object")
    return content


def _text(content: object, where: str) -> str:
    if not isinstance(content, str):
        raise damaged(where, f"JSON of type {type(content).__name__}", "text")
    return content


def _whole(content: object, least: int, most: int, where: str) -> int:
    if not _is_whole(content) or not least <= content <= most:
        raise damaged(where, "another value", f"a whole number from {least} to {most}")
    return content


def _is_whole(content: object) -> TypeGuard[int]:
    return isinstance(content, int) and not isinstance(content, bool)


def save(
    folder: Path | str,
    model: EncoderDecoder,
    source_vocabulary: Vocabulary,
    target_vocabulary: Vocabulary,
    facts: dict[str, Any],
) -> None:
    """Write a model; one that is in the folder already can be read until the new one is complete.

    Other files of the folder are left alone.

    Args:
        folder: made if it is not there.
        model: its weights are float32, on any device.
        source_vocabulary: of the sentences that the model reads.
        target_vocabulary: of those it writes; the same where the architecture is joint.
        facts: whatever JSON can say, such as the recipe, or the length penalty found on validation data.
    """
    folder = Path(folder)
    joint = model.architecture.joint
    vocabularies = _checked(model, source_vocabulary, target_vocabulary)
    files = {WEIGHTS: _weights(model), **{name: words.to_bytes() for name, words in vocabularies.items()}}
    page = Page(
        regard=__version__,
        architecture=model.architecture,
        vocabularies={name: VocabularyFacts(words.unit, len(words)) for name, words in vocabularies.items()},
        files={name: FileFacts.of(content) for name, content in files.items()},
        facts=facts,
    ).to_bytes()
    try:
        _replace(folder, files, page)
        for stale in {SOURCE, TARGET, JOINT} - set(vocabulary_files(joint)):
            (folder / stale).unlink(missing_ok=True)
    except OSError as refusal:
        raise RegardError(
            "folder",
            got=f"{folder} ({refusal.strerror})",
            needed="a folder that can be written, with room for the model",
            repair="Choose another folder or make room; the model that was there before can still be loaded.",
        ) from None


def _replace(folder: Path, files: dict[str, bytes], page: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _finish_interrupted(folder)
    for name, content in files.items():
        _write(incoming(folder / name), content)
    _write(incoming(folder / PAGE), page)
    _flush_folder(folder)
    incoming(folder / PAGE).replace(folder / PAGE)
    _flush_folder(folder)
    for name in files:
        incoming(folder / name).replace(folder / name)
    _flush_folder(folder)


def _finish_interrupted(folder: Path) -> None:
    """Bring in what an interrupted save had left to bring in; throw away what it had not finished."""
    waiting = [path for name in (WEIGHTS, SOURCE, TARGET, JOINT) if (path := incoming(folder / name)).is_file()]
    incoming(folder / PAGE).unlink(missing_ok=True)
    if not waiting:
        return
    try:
        described = Page.from_bytes((folder / PAGE).read_bytes(), PAGE).files
    except (OSError, RegardError):
        described = {}  # no model that could be lost
    for path in waiting:
        name = path.name.removesuffix(INCOMING)
        if described.get(name) == FileFacts.of(path.read_bytes()):
            path.replace(folder / name)
        else:
            path.unlink()


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # a link is removed, not followed
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Make renames last through a power cut, where the system can (Windows keeps no handle on a folder)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _weights(model: EncoderDecoder) -> bytes:
    """Each tensor once, under the first of its names."""
    state = model.state_dict()
    tensors = {names[0]: state[names[0]].detach().to("cpu").contiguous() for names in names_of_each(model)}
    _check_dtype(tensors)
    return extra("safetensors.torch", WEIGHTS).save(tensors)


def _check_dtype(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise RegardError(
                "model",
                got=f"{name} in {tensor.dtype}",
                needed="weights in torch.float32",
                repair="Call model.float() first.",
            )


def _checked(model: EncoderDecoder, source: Vocabulary, target: Vocabulary) -> dict[str, Vocabulary]:
    """The vocabularies by the names of their files, if they are the model's."""
    sizes = {"source": model.source_embedding.num_embeddings, "target": model.target_embedding.num_embeddings}
    for side, vocabulary in (("source", source), ("target", target)):
        if len(vocabulary) != sizes[side]:
            raise RegardError(
                f"{side}_vocabulary",
                got=f"{len(vocabulary)} ids",
                needed=f"{sizes[side]}, as many as the model has {side} words",
                repair="Save the vocabularies that the model was trained with.",
            )
    if not model.architecture.joint:
        return {SOURCE: source, TARGET: target}
    if source is not target and source.to_bytes() != target.to_bytes():
        raise RegardError(
            "target_vocabulary",
            got="another vocabulary than the source's",
            needed="one vocabulary for both languages, since the architecture is joint",
            repair="Pass the joint vocabulary twice.",
        )
    return {JOINT: source}


ATTEMPTS = 5  # at a folder that a training is just writing to


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model with everything that its folder holds.

    source_vocabulary, target_vocabulary: one object where the architecture is joint.
    facts: what was saved beside the weights.
    """

    model: EncoderDecoder
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    facts: dict[str, Any]


def load(folder: Path | str, device: torch.device | str = "cpu") -> Loaded:
    """Read a model that `save` wrote, in evaluation mode; refuse one that is damaged in any way."""
    folder = Path(folder)
    page, files = _read(folder)
    vocabularies = {name: _vocabulary(folder / name, page, files[name]) for name in page.vocabularies}
    if page.architecture.joint:
        source = target = vocabularies[JOINT]
    else:
        source, target = vocabularies[SOURCE], vocabularies[TARGET]
    tensors = _tensors(folder / WEIGHTS, files[WEIGHTS], page.format)
    model = _model(folder / WEIGHTS, page.architecture, len(source), len(target), tensors)
    return Loaded(model.to(device).eval(), source, target, page.facts)


def _read(folder: Path) -> tuple[Page, dict[str, bytes]]:
    """The page, and the content of every file that it describes."""
    for _ in range(ATTEMPTS - 1):
        written = _read_page(folder)
        try:
            return _read_files(folder, written)
        except RegardError:
            if written == _read_page(folder):  # not a new model that came while we read the old one
                raise
    return _read_files(folder, _read_page(folder))


def _read_page(folder: Path) -> bytes:
    path = folder / PAGE
    if not path.is_file():
        raise RegardError(
            "model",
            got=f"{folder}, {'a folder without' if folder.is_dir() else 'where there is no'} {PAGE}",
            needed="the folder of a trained model",
            repair="Pass the folder that was named with --out when the model was trained.",
        )
    try:
        if path.stat().st_size > MOST_PAGE_BYTES:
            raise damaged(str(path), f"more than {MOST_PAGE_BYTES} bytes", "the page of a model")
        return read_regular(path, MOST_PAGE_BYTES)
    except OSError as refusal:
        raise _unreadable(path, refusal) from None


def _read_files(folder: Path, written: bytes) -> tuple[Page, dict[str, bytes]]:
    page = Page.from_bytes(written, str(folder / PAGE))
    return page, {name: _read_file(folder / name, facts) for name, facts in page.files.items()}


def _read_file(path: Path, facts: FileFacts) -> bytes:
    """The content that the page describes, from the file or from the one that was to replace it (see `saving`)."""
    found = "no such file"
    for place in (path, incoming(path)):
        try:
            size = place.stat().st_size
            if size == facts.size:
                content = read_regular(place, facts.size)
                if FileFacts.of(content) == facts:
                    return content
        except FileNotFoundError:
            continue
        except OSError as refusal:
            raise _unreadable(place, refusal) from None
        if place == path:
            found = f"{size} bytes" if size != facts.size else "content with another SHA-256"
    raise damaged(str(path), found, f"the file of {facts.size} bytes that {PAGE} describes")


def _unreadable(path: Path, refusal: OSError) -> RegardError:
    return RegardError(
        "model",
        got=f"{path} ({refusal.strerror})",
        needed="a file that can be read",
        repair="Check its permissions and the disk.",
    )


def _vocabulary(path: Path, page: Page, content: bytes) -> Vocabulary:
    facts = page.vocabularies[path.name]
    try:
        return load_vocabulary(facts.unit, content, facts.size)
    except MissingPackageError:
        raise
    except RegardError as refusal:
        raise damaged(str(path), refusal.got, refusal.needed) from None


def _model(
    path: Path, architecture: Architecture, source: int, target: int, tensors: dict[str, Tensor]
) -> EncoderDecoder:
    _check_sizes(path, architecture, tensors)
    # On the meta device a model has shapes and no memory: nothing is allocated before the file has been compared.
    with torch.device("meta"):
        model = EncoderDecoder(architecture, source, target)
    names = names_of_each(model)
    wanted = model.state_dict()
    _check_tensors(path, {each[0]: wanted[each[0]] for each in names}, tensors)
    # One parameter for all names of a tensor: what was shared is shared again.
    state: dict[str, Tensor] = {}
    for each in names:
        state.update(dict.fromkeys(each, nn.Parameter(tensors[each[0]])))
    model.load_state_dict(state, assign=True)
    return model


def _tensors(path: Path, content: bytes, version: int) -> dict[str, Tensor]:
    """The tensors by the names that they have in the present format."""
    package = extra("safetensors", WEIGHTS)
    try:
        tensors = extra("safetensors.torch", WEIGHTS).load(content)
    except (package.SafetensorError, ValueError, KeyError, RuntimeError) as refusal:
        raise damaged(str(path), f"no safetensors file ({refusal})", "the weights of a model") from None
    return tensors if version == FORMAT else {_renamed(name): tensor for name, tensor in tensors.items()}


def _renamed(name: str) -> str:
    """The present name of a tensor of format 1."""
    for old, new in FORMAT_1_NAMES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _check_sizes(path: Path, architecture: Architecture, tensors: dict[str, Tensor]) -> None:
    """Compare the sizes of the architecture with the tensors before a model of that architecture is built.

    A width cannot be larger than the number of weights, and the last layer of the encoder has tensors.
    """
    weights = sum(tensor.numel() for tensor in tensors.values())
    for name in ("embedding", "hidden", "attention_dim", "heads"):
        size = getattr(architecture, name)
        if size is not None and size > weights:
            needed = f"weights for the architecture of {PAGE}, whose {name} is larger than the file"
            raise damaged(str(path), f"{weights} weights in {len(tensors)} tensors", needed)
    last = f"encoder.forward_layers.{architecture.layers - 1}."
    if not any(name.startswith(last) for name in tensors):
        raise damaged(
            str(path), f"no tensor '{last}...'", f"the {architecture.layers} layers of the architecture in {PAGE}"
        )


def _check_tensors(path: Path, wanted: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    for name in sorted(wanted.keys() ^ found.keys()):
        had = "no tensor" if name in wanted else "a tensor too many"
        raise damaged(str(path), f"{had} {name[:80]!r}", f"exactly the tensors of the architecture in {PAGE}")
    for name, tensor in wanted.items():
        got, needed = found[name], tensor
        if got.shape != needed.shape or got.dtype != torch.float32:
            raise damaged(str(path), f"{name} {_shown(got)}", f"float32 {tuple(needed.shape)}")


def _shown(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
