"""A disk that is full while a training writes: one sentence, the checkpoint before survives, and it can go on.

The disk is a tmpfs of a namespace of our own where the system lets us have one; in any case the limit on the size of a
file, which makes a write fail in the middle.
"""

import os
import random
import resource
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.stress.trainings import PLACES, STARTING, Child, differences, killable, result

from regard.errors import RegardError
from regard.translation import checkpoint, training

TIMES = 40
PRIVATE = ("unshare", "--map-root-user", "--mount")
MOUNTED = "REGARD_PRIVATE_MOUNT"
SIZE, PAGE = 8 * 2**20, 4096
BALLAST = "ballast"
LOOK = 0.001


def command() -> tuple[str, ...]:
    """What the process of this stress is started by: in a namespace of mounts, where that is allowed."""
    try:
        allowed = subprocess.run([*PRIVATE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    except FileNotFoundError:
        return ()
    return () if allowed.returncode else ("env", f"{MOUNTED}=1", *PRIVATE)


def run(share: float, seconds: float, seed: int) -> dict[str, Any]:
    """Fill the disk at random moments until `share` of the times are done."""
    end, wanted, draw = time.perf_counter() + seconds, max(2, round(share * TIMES)), random.Random(seed)
    ways, where, lost = Counter(), Counter(), []
    with tempfile.TemporaryDirectory() as place:
        recipe, whole = killable(seed), Path(place) / "whole"
        begin = time.perf_counter()
        assert Child(recipe, whole).wait() == 0, "an undisturbed training failed"
        lasts, right = time.perf_counter() - begin, result(whole)
        while ways.total() < wanted and time.perf_counter() < end and not lost:
            folder = Path(place) / str(ways.total())
            folder.mkdir()
            if os.environ.get(MOUNTED) and ways.total() % 2:
                ways["full tmpfs"] += 1
                with _mounted(folder):
                    child = _filled(recipe, folder, draw, lasts)
                    lost += _complaints(child, folder, recipe, right)
            else:
                ways["limit of a file"] += 1
                child = _limited(recipe, folder / "out", right, draw)
                lost += _complaints(child, folder, recipe, right)
            if child.said:
                where[PLACES[child.place]] += 1
    if where.total() < ways.total() / 2:
        lost.append(f"only {where.total()} of {ways.total()} trainings were refused: the disk was hardly ever full")
    found = {"counts": {"times": ways.total()}, "ways": dict(ways), "refused": where.total()}
    return {**found, "while writing": dict(where), "lost": lost}


def _complaints(child: Child, folder: Path, recipe: Any, right: dict[str, Any]) -> list[str]:
    """What went wrong with a training whose disk was full, and with going on after there was room again."""
    status, said, out = child.wait(), child.said, folder / "out"
    (folder / BALLAST).unlink(missing_ok=True)
    if status not in (0, 2):
        return [f"status {status}: {said}"]
    if status == 2 and not ("No space left" in said or "File too large" in said):
        return [f"another refusal: {said}"]
    try:
        checkpoint.load(out / training.STATE)  # a checkpoint, or none where none had been written yet
    except RegardError as damaged:
        return [f"the checkpoint before is lost: {damaged}"]
    again = Child(recipe, out)
    if (status := again.wait()) != 0:
        return [f"it did not go on: status {status}: {again.said}"]
    return [f"it went on to another {name}" for name in differences(result(out), right)]


def _filled(recipe: Any, folder: Path, draw: random.Random, lasts: float) -> Child:
    """A training whose disk is filled at some moment, to the last page or nearly."""
    with (folder / BALLAST).open("wb", buffering=0) as ballast:
        child = Child(recipe, folder / "out")
        moment = time.perf_counter() + draw.uniform(0.0, lasts / 2)
        while child.is_running and (child.place == STARTING or time.perf_counter() < moment):
            time.sleep(LOOK)
        with suppress(OSError):
            while ballast.write(bytes(PAGE)):
                pass
        ballast.truncate(max(0, os.fstat(ballast.fileno()).st_size - draw.choice((0, 0, 1, 2, 8)) * PAGE))
    return child


def _limited(recipe: Any, out: Path, right: dict[str, Any], draw: random.Random) -> Child:
    """A training that goes on from some checkpoints, and may then write files of some size only."""
    first = Child(recipe, out)
    moment = time.perf_counter() + draw.uniform(0.2, 1.0)
    while first.is_running and (first.place == STARTING or time.perf_counter() < moment):
        time.sleep(LOOK)
    if first.is_running:
        os.kill(first.id, signal.SIGKILL)
    first.wait()
    most = draw.choice((0, 100, 4096, len(right["model.safetensors"]) - 1, 20_000))

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error of the write, instead of the process' end
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    return Child(recipe, out, limit)


@contextmanager
def _mounted(folder: Path) -> Iterator[None]:
    """A small disk that only this process and its children see."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
