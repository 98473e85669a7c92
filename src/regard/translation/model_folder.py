"""A trained model as a folder: weights, vocabularies and a manifest; saved atomically, read without trust.

The weights are safetensors, the vocabularies JSON or sentencepiece models, the manifest `model.json` is JSON: loading
executes nothing, and sizes are checked before memory is allocated.

Saving keeps a complete model readable at every moment. New files are written beside the old ones as `NAME.incoming`;
one rename replaces `model.json`, and from then on the new model counts; only then the other files get their names. A
reader that finds a file which does not match the manifest looks for it under its `.incoming` name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeGuard

import torch
from torch import Tensor, nn

from regard import __version__
from regard.errors import RegardError
from regard.extras import MissingPackageError, require
from regard.translation.model import Architecture, EncoderDecoder
from regard.translation.text import read_regular
from regard.translation.vocabulary import NUM_SPECIAL, Vocabulary, load_vocabulary

MANIFEST = "model.json"
WEIGHTS = "model.safetensors"
SOURCE = "source.vocabulary"
TARGET = "target.vocabulary"
JOINT = "joint.vocabulary"
STAGED = ".incoming"
FORMAT = 2
"""Version 0.1 wrote format 1, whose tensors have other names."""
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
"""Prefixes of tensor names in format 1, and the present ones."""
MANIFEST_KEYS = {"format", "regard", "architecture", "vocabularies", "files", "facts", "checksum"}
MAX_MANIFEST_BYTES = 2**24
"""A manifest has a few kilobytes; a longer file is not read."""
MAX_FILE_BYTES = 2**50
"""Larger sizes in a manifest are refused."""
MAX_ATTEMPTS = 5
"""Times that a folder is read while a training is replacing its model."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model with its vocabularies: what search, training, evaluation and the studio pass around.

    Attributes:
        model: the encoder and decoder.
        source_vocabulary: of the sentences that the model reads.
        target_vocabulary: of those it writes; the same object if the architecture is joint.
        metadata: what was saved with the weights: any JSON, such as the recipe, or the best length penalty.
    """

    model: EncoderDecoder
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    metadata: dict[str, Any]

    @classmethod
    def load(cls, folder: Path | str, device: torch.device | str = "cpu") -> Self:
        """Read a model folder.

        Args:
            folder: the folder that `save` wrote.
            device: where to put the model.

        Returns:
            The model, in evaluation mode.

        Raises:
            RegardError: if the folder is damaged in any way.
        """
        folder = Path(folder)
        manifest, files = _read(folder)
        vocabularies = {name: _vocabulary(folder / name, manifest, files[name]) for name in manifest.vocabularies}
        if manifest.architecture.joint:
            source = target = vocabularies[JOINT]
        else:
            source, target = vocabularies[SOURCE], vocabularies[TARGET]
        tensors = _tensors(folder / WEIGHTS, files[WEIGHTS], manifest.format)
        model = _model(folder / WEIGHTS, manifest.architecture, len(source), len(target), tensors)
        return cls(model.to(device).eval(), source, target, manifest.metadata)

    def save(self, folder: Path | str) -> None:
        """Write the model. A model that is in the folder already can be read until the new one is complete.

        Other files of the folder are left alone.

        Args:
            folder: created if it does not exist.

        Raises:
            RegardError: if the vocabularies are not the model's, the weights are not float32, the metadata cannot be
                written as JSON, or the folder cannot be written.
        """
        folder = Path(folder)
        vocabularies = _checked_vocabularies(self)
        files = {WEIGHTS: _weights(self.model), **{name: words.to_bytes() for name, words in vocabularies.items()}}
        manifest = Manifest(
            regard=__version__,
            architecture=self.model.architecture,
            vocabularies={name: VocabularyInfo(words.unit, len(words)) for name, words in vocabularies.items()},
            files={name: FileInfo.of(content) for name, content in files.items()},
            metadata=self.metadata,
        ).to_bytes()
        try:
            _replace(folder, files, manifest)
            for stale in {SOURCE, TARGET, JOINT} - vocabularies.keys():
                (folder / stale).unlink(missing_ok=True)
        except OSError as refusal:
            raise RegardError(
                "folder",
                got=f"{folder} ({refusal.strerror})",
                needed="a folder that can be written, with room for the model",
                repair="Choose another folder or make room; the model that was there before can still be loaded.",
            ) from None


def shared_tensor_names(model: nn.Module) -> list[list[str]]:
    """Return the names of each tensor of the model's state; tied weights and a joint table have several."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return list(names.values())


def staged_path(path: Path) -> Path:
    """Return where a file is kept until the manifest that describes it has been written."""
    return path.with_name(path.name + STAGED)


# --- The manifest ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileInfo:
    """The length of a file in bytes, and its SHA-256 in hexadecimal digits."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return those of a file with this content."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class VocabularyInfo:
    """The unit of a vocabulary ("bpe", "characters" or "words"), and its number of ids."""

    unit: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """The content of `model.json`.

    Attributes:
        regard: the version of the library that wrote it.
        architecture: of the model.
        vocabularies: by file name.
        files: every other file of the folder, by name.
        metadata: see `TrainedModel`; the key in the file is "facts".
        format: of the folder; 1 if version 0.1 wrote it.
    """

    regard: str
    architecture: Architecture
    vocabularies: dict[str, VocabularyInfo]
    files: dict[str, FileInfo]
    metadata: dict[str, Any]
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """Return the manifest as it is written.

        Raises:
            RegardError: if the metadata cannot be written as JSON.
        """
        content = {"format": self.format, **asdict(self)}
        content["facts"] = content.pop("metadata")
        try:
            return _render({**content, "checksum": _checksum(content)})
        except (TypeError, ValueError, RecursionError) as refusal:
            raise RegardError(
                "metadata",
                got=f"a value that JSON does not have ({refusal})",
                needed="names with text, finite numbers, true, false, None, lists and dicts of them",
                repair="Convert tensors to numbers and paths to text.",
            ) from None

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """Read a manifest and check every value in it.

        Args:
            data: the content of the file.
            where: its path, for error messages.

        Returns:
            The manifest.

        Raises:
            RegardError: if it is damaged, or of a newer format.
        """
        try:
            content = json.loads(data.decode())
        except (ValueError, RecursionError):
            raise corrupt_file(where, "text that is not JSON", "the manifest of a model") from None
        if not isinstance(content, dict):
            raise corrupt_file(where, f"JSON of type {type(content).__name__}", "an object, the manifest of a model")
        _check_format(content, where)
        if set(content) != MANIFEST_KEYS:
            wrong = ", ".join(sorted(map(repr, MANIFEST_KEYS ^ set(content))))
            needed = f"exactly {', '.join(sorted(MANIFEST_KEYS))}"
            raise corrupt_file(where, f"fields that are missing or too many: {wrong}", needed)
        checksum = content.pop("checksum")
        if not _matches_checksum(content, checksum, data):
            raise corrupt_file(
                where, "a manifest that does not agree with its own checksum", "the manifest as it was written"
            )
        return cls(
            regard=_text(content["regard"], f"{where}, regard"),
            architecture=(architecture := _architecture(content["architecture"], f"{where}, architecture")),
            vocabularies=_vocabulary_infos(content["vocabularies"], architecture.joint, f"{where}, vocabularies"),
            files=_file_infos(content["files"], architecture.joint, f"{where}, files"),
            metadata=_object(content["facts"], f"{where}, facts"),
            format=content["format"],
        )


def corrupt_file(where: str, got: str, needed: str) -> RegardError:
    """Return the error about a damaged file of a model folder."""
    repair = "The file was damaged or changed after it was saved; copy the folder again, or train or save it anew."
    return RegardError(where, got=got, needed=needed, repair=repair)


def vocabulary_files(joint: bool) -> tuple[str, ...]:
    """Return the names of the vocabulary files: one for both languages, or one for each."""
    return (JOINT,) if joint else (SOURCE, TARGET)


def _render(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 of all fields but the checksum. It detects damage; it is not a signature."""
    return hashlib.sha256(_render(content)).hexdigest()


def _matches_checksum(content: dict[str, Any], checksum: object, data: bytes) -> bool:
    """Return whether the file is, byte for byte, what `to_bytes` writes of this content."""
    try:
        return checksum == _checksum(content) and data == _render({**content, "checksum": checksum})
    except (ValueError, RecursionError):  # NaN, lone surrogates or deep nesting: `to_bytes` never writes these
        return False


def _check_format(content: dict[str, Any], where: str) -> None:
    version = content.get("format")
    if _is_whole(version) and version > FORMAT:
        raise RegardError(
            where,
            got=f"a model folder of format {version if version < 10**9 else 'above 999999999'}",
            needed=f"format {FORMAT}, the newest that this version of regard reads",
            repair="Update regard with pip install --upgrade regard.",
        )
    if not _is_whole(version) or not 1 <= version <= FORMAT:
        raise corrupt_file(where, "no format number that regard has ever written", f'"format": {FORMAT}')


def _architecture(content: object, where: str) -> Architecture:
    found = _object(content, where)
    unknown = found.keys() - {field.name for field in fields(Architecture)}
    if unknown:  # a missing field is newer than the manifest, and its default is what the model had
        wrong = ", ".join(sorted(map(repr, unknown)))[:80]
        raise corrupt_file(where, f"unknown fields: {wrong}", "the fields of an Architecture")
    try:
        return Architecture(**found)
    except RegardError as refusal:
        raise corrupt_file(where, f"{refusal.argument} = {refusal.got}", refusal.needed) from None


def _vocabulary_infos(content: object, joint: bool, where: str) -> dict[str, VocabularyInfo]:
    found = _with_keys(content, vocabulary_files(joint), where)
    result = {}
    for name, info in found.items():
        here = f"{where}, {name}"
        entry = _with_keys(info, ("unit", "size"), here)
        size = _whole(entry["size"], NUM_SPECIAL, f"{here}, size")
        result[name] = VocabularyInfo(_text(entry["unit"], f"{here}, unit"), size)
    return result


def _file_infos(content: object, joint: bool, where: str) -> dict[str, FileInfo]:
    found = _with_keys(content, (WEIGHTS, *vocabulary_files(joint)), where)
    result = {}
    for name, info in found.items():
        here = f"{where}, {name}"
        entry = _with_keys(info, ("size", "sha256"), here)
        digest = _text(entry["sha256"], f"{here}, sha256")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise corrupt_file(f"{here}, sha256", "other text", "64 hexadecimal digits")
        result[name] = FileInfo(_whole(entry["size"], 0, f"{here}, size"), digest)
    return result


def _with_keys(content: object, keys: tuple[str, ...], where: str) -> dict[str, Any]:
    found = _object(content, where)
    if set(found) != set(keys):
        raise corrupt_file(where, f"{len(found)} names, not the right ones", f"exactly {', '.join(keys)}")
    return found


def _object(content: object, where: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise corrupt_file(where, f"JSON of type {type(content).__name__}", "an object")
    return content


def _text(content: object, where: str) -> str:
    if not isinstance(content, str):
        raise corrupt_file(where, f"JSON of type {type(content).__name__}", "text")
    return content


def _whole(content: object, least: int, where: str) -> int:
    if not _is_whole(content) or not least <= content <= MAX_FILE_BYTES:
        raise corrupt_file(where, "another value", f"a whole number from {least} to {MAX_FILE_BYTES}")
    return content


def _is_whole(content: object) -> TypeGuard[int]:
    return isinstance(content, int) and not isinstance(content, bool)


# --- Saving ---------------------------------------------------------------------------------------------------------


def _replace(folder: Path, files: dict[str, bytes], manifest: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _finish_interrupted(folder)
    for name, content in files.items():
        _write(staged_path(folder / name), content)
    _write(staged_path(folder / MANIFEST), manifest)
    _flush_folder(folder)
    staged_path(folder / MANIFEST).replace(folder / MANIFEST)
    _flush_folder(folder)
    for name in files:
        staged_path(folder / name).replace(folder / name)
    _flush_folder(folder)


def _finish_interrupted(folder: Path) -> None:
    """Rename the files that an interrupted save had completed, and delete those that it had not."""
    staged = [path for name in (WEIGHTS, SOURCE, TARGET, JOINT) if (path := staged_path(folder / name)).is_file()]
    staged_path(folder / MANIFEST).unlink(missing_ok=True)
    if not staged:
        return
    try:
        described = Manifest.from_bytes((folder / MANIFEST).read_bytes(), MANIFEST).files
    except (OSError, RegardError):
        described = {}  # there is no model that could be lost
    for path in staged:
        name = path.name.removesuffix(STAGED)
        if described.get(name) == FileInfo.of(path.read_bytes()):
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
    """Make renames survive a power cut, where the system can: Windows cannot open a folder."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _weights(model: EncoderDecoder) -> bytes:
    """Return each tensor once, under the first of its names, as a safetensors file."""
    state = model.state_dict()
    tensors = {names[0]: state[names[0]].detach().to("cpu").contiguous() for names in shared_tensor_names(model)}
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise RegardError(
                "model",
                got=f"{name} in {tensor.dtype}",
                needed="weights in torch.float32",
                repair="Call model.float() first.",
            )
    return require("safetensors.torch", "translation", WEIGHTS).save(tensors)


def _checked_vocabularies(trained: TrainedModel) -> dict[str, Vocabulary]:
    """Return the vocabularies by file name, if they fit the model."""
    model, source, target = trained.model, trained.source_vocabulary, trained.target_vocabulary
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


# --- Loading --------------------------------------------------------------------------------------------------------


def _read(folder: Path) -> tuple[Manifest, dict[str, bytes]]:
    """Return the manifest, and the content of every file that it describes."""
    for _ in range(MAX_ATTEMPTS - 1):
        written = _read_manifest(folder)
        try:
            return _read_files(folder, written)
        except RegardError:
            if written == _read_manifest(folder):  # not a new model that was saved while we read the old one
                raise
    return _read_files(folder, _read_manifest(folder))


def _read_manifest(folder: Path) -> bytes:
    path = folder / MANIFEST
    if not path.is_file():
        raise RegardError(
            "model",
            got=f"{folder}, {'a folder without' if folder.is_dir() else 'where there is no'} {MANIFEST}",
            needed="the folder of a trained model",
            repair="Pass the folder that was named with --out when the model was trained.",
        )
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise corrupt_file(str(path), f"more than {MAX_MANIFEST_BYTES} bytes", "the manifest of a model")
        return read_regular(path, MAX_MANIFEST_BYTES)
    except OSError as refusal:
        raise _unreadable(path, refusal) from None


def _read_files(folder: Path, written: bytes) -> tuple[Manifest, dict[str, bytes]]:
    manifest = Manifest.from_bytes(written, str(folder / MANIFEST))
    return manifest, {name: _read_file(folder / name, info) for name, info in manifest.files.items()}


def _read_file(path: Path, info: FileInfo) -> bytes:
    """Return the content that the manifest describes, from the file or from its staged replacement."""
    found = "no such file"
    for place in (path, staged_path(path)):
        try:
            size = place.stat().st_size
            if size == info.size:
                content = read_regular(place, info.size)
                if FileInfo.of(content) == info:
                    return content
        except FileNotFoundError:
            continue
        except OSError as refusal:
            raise _unreadable(place, refusal) from None
        if place == path:
            found = f"{size} bytes" if size != info.size else "content with another SHA-256"
    raise corrupt_file(str(path), found, f"the file of {info.size} bytes that {MANIFEST} describes")


def _unreadable(path: Path, refusal: OSError) -> RegardError:
    return RegardError(
        "model",
        got=f"{path} ({refusal.strerror})",
        needed="a file that can be read",
        repair="Check its permissions and the disk.",
    )


def _vocabulary(path: Path, manifest: Manifest, content: bytes) -> Vocabulary:
    info = manifest.vocabularies[path.name]
    try:
        return load_vocabulary(info.unit, content, info.size)
    except MissingPackageError:
        raise
    except RegardError as refusal:
        raise corrupt_file(str(path), refusal.got, refusal.needed) from None


def _model(
    path: Path, architecture: Architecture, source: int, target: int, tensors: dict[str, Tensor]
) -> EncoderDecoder:
    _check_sizes(path, architecture, tensors)
    # On the meta device a model has shapes and no memory: nothing is allocated before the file has been compared.
    with torch.device("meta"):
        model = EncoderDecoder(architecture, source, target)
    names = shared_tensor_names(model)
    expected = model.state_dict()
    _check_tensors(path, {each[0]: expected[each[0]] for each in names}, tensors)
    # One parameter for all names of a tensor, so that what was shared is shared again.
    state: dict[str, Tensor] = {}
    for each in names:
        state.update(dict.fromkeys(each, nn.Parameter(tensors[each[0]])))
    model.load_state_dict(state, assign=True)
    return model


def _tensors(path: Path, content: bytes, version: int) -> dict[str, Tensor]:
    """Return the tensors by their names in the present format."""
    package = require("safetensors", "translation", WEIGHTS)
    try:
        tensors = require("safetensors.torch", "translation", WEIGHTS).load(content)
    except (package.SafetensorError, ValueError, KeyError, RuntimeError) as refusal:
        raise corrupt_file(str(path), f"no safetensors file ({refusal})", "the weights of a model") from None
    return tensors if version == FORMAT else {_renamed(name): tensor for name, tensor in tensors.items()}


def _renamed(name: str) -> str:
    """Return the present name of a tensor of format 1."""
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
            needed = f"weights for the architecture of {MANIFEST}, whose {name} is larger than the file"
            raise corrupt_file(str(path), f"{weights} weights in {len(tensors)} tensors", needed)
    last = f"encoder.forward_layers.{architecture.layers - 1}."
    if not any(name.startswith(last) for name in tensors):
        raise corrupt_file(
            str(path), f"no tensor '{last}...'", f"the {architecture.layers} layers of the architecture in {MANIFEST}"
        )


def _check_tensors(path: Path, expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    for name in sorted(expected.keys() ^ found.keys()):
        had = "no tensor" if name in expected else "a tensor too many"
        raise corrupt_file(str(path), f"{had} {name[:80]!r}", f"exactly the tensors of the architecture in {MANIFEST}")
    for name, tensor in expected.items():
        got = found[name]
        if got.shape != tensor.shape or got.dtype != torch.float32:
            described = f"{str(got.dtype).removeprefix('torch.')} {tuple(got.shape)}"
            raise corrupt_file(str(path), f"{name} {described}", f"float32 {tuple(tensor.shape)}")
