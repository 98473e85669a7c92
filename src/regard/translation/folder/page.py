"""`model.json`: what a model folder says of itself, and the checks of every word of it."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeGuard

from regard.errors import RegardError
from regard.translation.folder.layout import WEIGHTS, vocabulary_files
from regard.translation.model import Architecture
from regard.translation.vocabulary import COUNT

FORMAT = 1
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
    """

    regard: str
    architecture: Architecture
    vocabularies: dict[str, VocabularyFacts]
    files: dict[str, FileFacts]
    facts: dict[str, Any]

    def to_bytes(self) -> bytes:
        """The page as it is written."""
        content = {"format": FORMAT, **asdict(self)}
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
    if not _is_whole(version) or version != FORMAT:
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
