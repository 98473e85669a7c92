"""What lets a training stop and resume: checkpoints, the lock of the folder, stop signals and the run's fingerprint."""

import hashlib
import io
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.translation.dataset import Corpus
from regard.translation.model import EncoderDecoder
from regard.translation.model_folder import TrainedModel
from regard.translation.recipe import Recipe
from regard.translation.text import open_regular

if TYPE_CHECKING:
    from regard.translation.training import Trainer

FORMAT = 3  # of the state that a checkpoint holds
NAME, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
DIGEST = hashlib.sha256().digest_size
MAX_BYTES = 2**36  # of a checkpoint that is read


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; the last one becomes the previous one.

    At every moment one of the two names belongs to a complete checkpoint: the new file gets its name when it is
    complete on the disk.

    Args:
        folder: Where the checkpoint is.
        state: Tensors, numbers and strings in dictionaries, lists and tuples.

    Raises:
        RegardError: If the file cannot be written; the last checkpoint stays.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()
    new = folder / f"{NAME}.incoming"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open_new(new) as file:
            file.write(hashlib.sha256(payload).digest())
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        if (folder / NAME).exists():
            (folder / NAME).replace(folder / PREVIOUS)
        new.replace(folder / NAME)
        _sync(folder)
    except OSError as refusal:
        new.unlink(missing_ok=True)
        then = "goes on from the checkpoint before" if exists(folder) else "begins anew, as there is no checkpoint yet"
        raise RegardError(
            "out",
            got=f"{folder} ({refusal.strerror})",
            needed="a folder that can be written, with room for a checkpoint",
            repair=f"Make room and start the same command again: it {then}.",
        ) from None


def exists(folder: Path) -> bool:
    """Whether the folder has a checkpoint."""
    return any((folder / name).exists() for name in (NAME, PREVIOUS))


def load(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """Read the last checkpoint; nothing in it is executed.

    Args:
        folder: Where the checkpoint is.
        device: Where its tensors go.

    Returns:
        The state, or None if there is no checkpoint.

    Raises:
        RegardError: If the file is damaged or cannot be read.
    """
    path = folder / NAME
    try:
        if not exists(folder):
            return None
        if not path.exists():
            path = folder / PREVIOUS  # the process was killed between the two renames
        with open_regular(path, MAX_BYTES) as file:
            digest = file.read(DIGEST)
            is_whole = hashlib.file_digest(file, "sha256").digest() == digest  # in constant memory
            file.seek(DIGEST)
            payload = io.BytesIO(file.read() if is_whole else b"")
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{path} ({refusal.strerror})",
            needed="a checkpoint that can be read",
            repair="Check the file and its permissions, or choose another folder.",
        ) from None
    if is_whole:
        with suppress(Exception):  # torch raises many types of errors for damaged bytes
            state = torch.load(payload, map_location=device, weights_only=True)
            if isinstance(state, dict):
                return state
    previous = folder / PREVIOUS
    repair = f"Rename {previous.name} to {NAME} to go on from the one before." if previous.exists() else "Start anew."
    raise RegardError("out", got=f"a damaged checkpoint, {path}", needed="the file as it was written", repair=repair)


def _sync(folder: Path) -> None:
    """Flush the renames to the disk; Windows cannot open folders."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing_file(path: Path) -> Iterator[None]:
    """Create the folder of a file that is written inside `with`.

    Args:
        path: The file.

    Raises:
        RegardError: In place of an OSError, with the file's name; or if the file is a link, a pipe or a device.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_regular_file(path)
        yield
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{path} ({refusal.strerror})",
            needed="a folder that can be written, with room in it",
            repair="Make room and start the same command again, or choose another folder.",
        ) from None


def open_in_place(path: Path, mode: str) -> IO[Any]:
    """Open a text file for writing or appending; never through a symbolic link."""
    return open(path, mode, encoding="utf-8", opener=_open_without_following)


def open_new(path: Path) -> IO[bytes]:
    """Create a file for writing; an existing file or link of that name is removed, not followed."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def _open_without_following(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _check_regular_file(path: Path) -> None:
    """Refuse links, devices and pipes, which a folder from elsewhere can contain."""
    if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
        raise RegardError(
            "out",
            got=f"{path}, which is {'a symbolic link' if path.is_symlink() else 'a pipe or a device'}",
            needed="a folder in which the training's files are regular files",
            repair="Delete it, or choose another folder.",
        )


LOCK_NAME = "lock"


class FolderLockedError(RegardError):
    """Another process is training in this folder."""


@contextmanager
def folder_lock(folder: Path, wanted: bool = True) -> Iterator[None]:
    """Lock a folder for one process; the system releases the lock when the process ends, however it ends.

    If a RegardError is raised inside, a folder that was new is removed again.

    Args:
        folder: The folder, created if needed.
        wanted: False in further processes of a training, whose main process has the lock.

    Raises:
        FolderLockedError: If another process has the lock.
        RegardError: If the folder cannot be written, or the system has no flock.
    """
    if not wanted:
        yield
        return
    new = [place for place in (folder, *folder.parents) if not os.access(place, os.F_OK)]
    _check_can_lock()
    with writing_file(folder / LOCK_NAME):
        file = open_in_place(folder / LOCK_NAME, "w")
    with file:
        if not _take_lock(file, folder / LOCK_NAME):
            raise FolderLockedError(
                "out",
                got=f"{folder.parent}, where another process is training",
                needed="a folder of its own",
                repair="Choose another folder, or wait.",
            )
        try:
            yield
        except RegardError:
            if new and list(folder.iterdir()) == [folder / LOCK_NAME]:
                _remove_lock(folder / LOCK_NAME, new)
            raise


def _check_can_lock() -> None:
    """Refuse a system without flock before anything is written."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        raise RegardError(
            "out",
            got=f"a training on {sys.platform}, where a folder cannot be locked",
            needed="Linux or macOS",
            repair="On Windows, train in the Windows Subsystem for Linux; trained models translate everywhere.",
        ) from None


def _take_lock(file: IO[Any], path: Path) -> bool:
    """Take the lock, unless another process has it or has removed the file since it was opened."""
    import fcntl  # `_check_can_lock` has refused systems without it

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove_lock(lock: Path, folders: Sequence[Path]) -> None:
    """Remove the lock and the folders around it as far as they are empty, the innermost first."""
    lock.unlink()
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


class StopSignals:
    """Defers SIGINT (Ctrl-C) and SIGTERM until a checkpoint has been written.

    Inside `with`, the first signal is recorded in `received`; a second one acts at once. In other threads than the main
    one nothing is recorded, because Python allows signal handlers in the main thread only.

    Attributes:
        received: The number of the recorded signal; None before.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers."""
        is_main = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM) if is_main else ():
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):  # None: set by C code, which cannot be restored
                self._handlers[number] = handler
                signal.signal(number, self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the handlers; a recorded signal acts now if the block ended without an exception."""
        self._restore()
        if self.received is not None and kind is None:
            self.act()

    def act(self) -> NoReturn:
        """Let the recorded signal act as it does outside: SIGINT raises KeyboardInterrupt, SIGTERM ends the process."""
        assert self.received is not None
        self._restore()
        signal.raise_signal(self.received)
        raise KeyboardInterrupt  # the outer handler returned, but the training has to end

    def _record(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None:
            self._restore()
            signal.raise_signal(number)
        self.received = number

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


def run_fingerprint(recipe: Recipe, corpus: Corpus, init: TrainedModel | None, processes: int) -> dict[str, Any]:
    """Describe what makes a training the same one: only then may it resume from a checkpoint.

    Args:
        recipe: All choices.
        corpus: The data.
        init: The model it starts from.
        processes: The number of processes.
    """
    return {
        "recipe": recipe.to_dict(),
        "corpus": corpus.fingerprint(),
        "init": None if init is None else weights_digest(init.model),
        "processes": processes,
    }


def check_same_run(begun: dict[str, Any], wanted: dict[str, Any], out: Path) -> None:
    """Refuse to resume another training.

    Args:
        begun: The fingerprint in the checkpoint.
        wanted: The fingerprint of the training that is to resume.
        out: The model folder.

    Raises:
        RegardError: If they differ; it names the part.
    """
    for key, value in wanted.items():
        if begun.get(key) != value:
            raise RegardError(
                "out",
                got=f"{out}, where a training with another {key} was begun",
                needed="a new folder, or the same recipe, data and number of processes",
                repair="Choose another folder, or delete this one.",
            )


def weights_digest(model: EncoderDecoder) -> str:
    """Return a digest of all weights."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Best:
    """The validation of the epoch whose model is kept; epoch 0 is none."""

    epoch: int = 0
    bleu: float = -1.0
    exact: float = -1.0
    loss: float = math.inf

    @classmethod
    def read(cls, values: object) -> "Best | None":
        """Return the epoch described in a checkpoint or model folder, or None if the values have another structure."""
        names = [entry.name for entry in fields(cls)]
        if not isinstance(values, dict) or sorted(values) != sorted(names):
            return None
        is_count = type(values["epoch"]) is int and values["epoch"] >= 0
        return cls(**values) if is_count and all(type(values[name]) in (int, float) for name in names[1:]) else None

    def beats(self, other: "Best") -> bool:
        """Compare by BLEU; equals by exact translations, then by the loss."""
        return (self.bleu, self.exact, -self.loss) > (other.bleu, other.exact, -other.loss)


def check_state(state: dict[str, Any], fingerprint: dict[str, Any], trainer: "Trainer", out: Path) -> None:
    """Refuse a checkpoint of another version or another training, or one with another structure.

    Args:
        state: The content of the checkpoint in `out`.
        fingerprint: The fingerprint of the training that is to resume.
        trainer: Its trainer, before it takes up the state.
        out: The model folder.

    Raises:
        RegardError: If the training cannot resume from the state.
    """
    if state.get("format") != FORMAT:
        raise RegardError(
            "out",
            got=f"{out}, with a checkpoint of another version of regard",
            needed=f"a checkpoint of format {FORMAT}",
            repair="Choose another folder, or finish the training with the version of regard that began it.",
        )
    found = state.get("fingerprint")
    _check_part(out, "fingerprint", lambda: bool(json.dumps(found)) and isinstance(found, dict))
    check_same_run(state["fingerprint"], fingerprint, out)
    inner = state.get("trainer")
    inner = inner if isinstance(inner, dict) else {}
    parameters = dict(enumerate(trainer.model.parameters()))
    checks: dict[str, Callable[[], bool]] = {
        "environment": lambda: all(isinstance(word, str) for item in state["environment"].items() for word in item),
        "model": lambda: _are_alike(inner["model"], trainer.model.state_dict()),
        "moments": lambda: all(
            _are_alike(each, {"step": torch.tensor(0.0), "exp_avg": parameters[at], "exp_avg_sq": parameters[at]})
            for at, each in inner["moments"].items()
        ),
        "average": lambda: (
            len(inner["average"]) <= trainer.recipe.training.average
            and all(_are_alike(dict(enumerate(weights)), parameters) for weights in inner["average"])
        ),
        "progress": lambda: _is_progress(state, inner, trainer.recipe.training.epochs),
        "sums": lambda: (
            len(inner["sums"]) == trainer.processes.size
            and all(len(sums) == 3 and all(type(one) is float for one in sums) for sums in inner["sums"])
        ),
        "random": lambda: (
            len(inner["random"]) == trainer.processes.size
            and all(_are_random_states(one, trainer.device) for one in inner["random"])
        ),
    }
    for name, check in checks.items():
        _check_part(out, name, check)


def _check_part(out: Path, name: str, check: Callable[[], bool]) -> None:
    try:
        fits = check()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError):
        fits = False  # the state has another structure than the check expects
    if not fits:
        raise RegardError(
            "out",
            got=f"{out}, with a checkpoint whose {name!r} is damaged or was written by another program",
            needed="a checkpoint that regard train wrote",
            repair="Choose another folder, or delete this one to begin anew.",
        )


def _are_alike(found: Mapping[Any, object], wanted: Mapping[Any, Tensor]) -> bool:
    """Whether tensors have the names, shapes and dtypes of others."""
    return found.keys() == wanted.keys() and all(
        isinstance(tensor := found[name], Tensor) and tensor.shape == like.shape and tensor.dtype == like.dtype
        for name, like in wanted.items()
    )


def _is_progress(state: dict[str, Any], inner: dict[str, Any], epochs: int) -> bool:
    """Whether counts, seconds and the best epoch are possible."""
    counts = [inner[name] for name in ("epoch", "batch", "update")]
    return (
        all(type(count) is int and 0 <= count < 2**53 for count in counts)
        and inner["batch"] <= inner["update"]
        and inner["epoch"] <= epochs
        and type(state["seconds"]) is float
        and 0 <= state["seconds"] < math.inf
        and Best.read(state["best"]) is not None
        and state["best"]["epoch"] <= inner["epoch"]
    )


def _are_random_states(found: dict[str, Any], device: torch.device) -> bool:
    torch.Generator().set_state(found["cpu"].cpu())
    if device.type == "cuda" and "cuda" in found:
        torch.Generator(device).set_state(found["cuda"].cpu())
    return True
