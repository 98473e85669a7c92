"""What a command writes: files checked before it works for minutes, lines in UTF-8, and failures as one line."""

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from regard.errors import RegardError

# --- Checks before a command starts to work ---------------------------------------------------------------------------


def check_can_write(read: Iterable[Path | None] = (), **paths: Path | None) -> None:
    """Raise if a file cannot be written: its folder is missing or read-only, or it is a folder, or read as well.

    Args:
        read: the files and folders that the command reads.
        **paths: flag and file; None if the flag was not given.

    Raises:
        RegardError: about the flag.
    """
    check_not_read(read, **paths)
    writing: dict[Path, str] = {}
    for flag, path in paths.items():
        if path is None:
            continue
        is_special = path.exists() and not path.is_file()  # a device can be written by several
        if (other := writing.setdefault(_real(path), flag)) != flag and not is_special:
            raise RegardError(
                flag,
                got=f"{path}, where {other} is written too",
                needed="another file",
                repair="One would overwrite the other.",
            )
        reason = _why_not(path)
        if reason is not None:
            raise RegardError(
                flag,
                got=f"{path} ({reason})",
                needed="a file that can be written",
                repair="Name a file in it."
                if path.is_dir()
                else f"Choose another path, or make the folder first: mkdir -p {path.parent}",
            )


def check_not_read(read: Iterable[Path | None], **paths: Path | None) -> None:
    """Raise if a file or folder is also read, or lies in a folder that is read. Links are followed.

    Args:
        read: the files and folders that the command reads.
        **paths: flag and file; None if the flag was not given.

    Raises:
        RegardError: about the flag.
    """
    writing = {flag: path for flag, path in paths.items() if path is not None}
    for source in (path for path in read if path is not None):
        inside = {_real(path) for path in source.iterdir()} if source.is_dir() else set()
        for flag, path in writing.items():
            target = _real(path)
            if target == _real(source) or target in inside:
                raise RegardError(
                    flag, got=f"{path}, which is read", needed="another file", repair="It would be overwritten."
                )
            if source.is_dir() and target.is_relative_to(_real(source)):
                raise RegardError(
                    flag,
                    got=f"{path} in the folder {source}, which is read",
                    needed="a place outside it",
                    repair="Choose another folder.",
                )


def _real(path: Path) -> Path:
    """Resolve symbolic links. Unlike `Path.resolve`, `os.path.realpath` accepts links that form a loop."""
    return Path(os.path.realpath(path))


def _why_not(path: Path) -> str | None:
    """Return why a file cannot be written, or None."""
    if path.is_dir():
        return "that is a folder"
    if not path.parent.exists():
        return f"there is no folder {path.parent}"
    if not path.parent.is_dir():
        return f"{path.parent} is no folder"
    if path.exists() and not path.is_file():
        return None  # a device or a pipe: only writing can tell
    target = path if path.exists() else path.parent
    return None if os.access(target, os.W_OK) else f"no right to write to {target}"


# --- Lines ------------------------------------------------------------------------------------------------------------


class LineWriter:
    """Writes lines that can be read at once.

    Args:
        argument: the flag that named the file.
        path: of the file; None for standard output.
        file: where to write.
    """

    def __init__(self, argument: str, path: Path | None, file: BinaryIO) -> None:
        self._argument = argument
        self._path = path
        self._file = file

    def write(self, *lines: str) -> None:
        """Write lines without their ends.

        Raises:
            BrokenPipeError: if the reader of standard output has closed it.
            RegardError: if the file cannot be written.
        """
        try:
            self._file.write("".join(f"{line}\n" for line in lines).encode())
            self._file.flush()
        except OSError as refusal:
            if self._path is None and isinstance(refusal, BrokenPipeError):
                # Python flushes standard output when it exits, and would report the broken pipe again.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())
                raise
            raise unwritable(self._argument, self._path or "standard output", refusal) from None


@contextmanager
def open_output(argument: str, path: Path | None) -> Iterator[LineWriter]:
    """Open a file, or standard output if `path` is None, for lines in UTF-8 whatever the locale.

    Raises:
        RegardError: if the file cannot be written; argument: the flag that named it.
    """
    if path is None:
        yield LineWriter(argument, None, sys.stdout.buffer)
        return
    try:
        file = path.open("wb")
    except OSError as refusal:
        raise unwritable(argument, path, refusal) from None
    try:
        yield LineWriter(argument, path, file)
    except BaseException:
        with suppress(OSError):  # closing flushes again; the first error is the one to report
            file.close()
        raise
    try:
        file.close()
    except OSError as refusal:
        raise unwritable(argument, path, refusal) from None


def write_text(argument: str, path: Path, text: str) -> None:
    """Write a file; raise a RegardError about `argument` if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as refusal:
        raise unwritable(argument, path, refusal) from None


def unwritable(argument: str, path: Path | str, refusal: OSError) -> RegardError:
    """Return the error about a file that cannot be written, with the system's reason."""
    return RegardError(
        argument,
        got=f"{path} ({refusal.strerror})",
        needed="a file that can be written",
        repair="Choose another path, or make room.",
    )


# --- Standard output, standard error and warnings ---------------------------------------------------------------------


@contextmanager
def checked_stdout() -> Iterator[None]:
    """Inside, raise a RegardError for output that cannot be written: the disk is full, or standard output is closed.

    A reader that has closed the pipe stays a BrokenPipeError.
    """
    original = sys.stdout
    # Python prints to a closed standard output without an error. A file that cannot be written raises one, and keeps
    # the first file that is opened from becoming the standard output of C libraries.
    stream = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8") if original is None else original
    checked = _CheckedStream(stream)
    sys.stdout = cast(TextIO, checked)
    try:
        yield
        checked.flush()
    finally:
        with suppress(RegardError, BrokenPipeError):  # another error is reported instead
            checked.flush()
        sys.stdout = original
        if original is None:
            stream.close()


class _CheckedStream:
    """A stream that raises a RegardError if it cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._explained():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._explained():
            self._stream.flush()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as refusal:
            # Python flushes standard output when it exits, and would report the error again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            raise RegardError(
                "output",
                got=f"standard output ({refusal.strerror})",
                needed="a place that can be written",
                repair="Send it to a file, or make room.",
            ) from None


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Inside, print each warning once, as one line on standard error without the code that raised it."""
    printed = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        line = " ".join(str(message).split())
        if line not in printed:
            printed.add(line)
            print(f"regard: {line}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """Inside, show in a terminal what is being done and the seconds so far; print nothing elsewhere."""
    # The help does not wait for these.
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # Results that are piped elsewhere must not pass through the terminal's stream.
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as shown:
        shown.add_task(what, total=None)
        yield
