"""Reading a model folder: nothing in it is executed, everything in it is checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.translation.extras import MissingPackageError, extra
from regard.translation.folder.layout import JOINT, MOST_PAGE_BYTES, PAGE, SOURCE, TARGET, WEIGHTS, incoming
from regard.translation.folder.page import FileFacts, Page, damaged
from regard.translation.folder.sharing import names_of_each
from regard.translation.model import Architecture, EncoderDecoder
from regard.translation.text import read_regular
from regard.translation.vocabulary import Vocabulary
from regard.translation.vocabulary import load as load_vocabulary

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
    model = _model(folder / WEIGHTS, page.architecture, len(source), len(target), files[WEIGHTS])
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


def _model(path: Path, architecture: Architecture, source: int, target: int, content: bytes) -> EncoderDecoder:
    tensors = _tensors(path, content)
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


def _tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    package = extra("safetensors", WEIGHTS)
    try:
        return extra("safetensors.torch", WEIGHTS).load(content)
    except (package.SafetensorError, ValueError, KeyError, RuntimeError) as refusal:
        raise damaged(str(path), f"no safetensors file ({refusal})", "the weights of a model") from None


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
    last = f"encoder.onward.{architecture.layers - 1}."
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
