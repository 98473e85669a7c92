"""Writing a model folder so that at every moment, whatever happens, a whole model can be read from it.

The order is what makes it safe. New files are first written beside the old ones, each as `….incoming`; then one rename
puts the new `model.json` in the place of the old: from here on the new model counts. Only then the new files take their
names. A reader that finds a file which is not the one its page describes looks whether that one is still incoming.
"""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import __version__
from regard.errors import RegardError
from regard.translation.extras import extra
from regard.translation.folder.layout import INCOMING, JOINT, PAGE, SOURCE, TARGET, WEIGHTS, incoming, vocabulary_files
from regard.translation.folder.page import FileFacts, Page, VocabularyFacts
from regard.translation.folder.sharing import names_of_each
from regard.translation.model import EncoderDecoder
from regard.translation.vocabulary import Vocabulary


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
    sizes = {"source": model.source_words.num_embeddings, "target": model.target_words.num_embeddings}
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
