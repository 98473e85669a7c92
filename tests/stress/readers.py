"""Readers of outside bytes under fuzzing: whatever comes is read or refused with a sentence, never anything else."""

import gzip
import hashlib
import io
import json
import random
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.translation.models import random_model, save_model

from regard.errors import RegardError
from regard.regression import csv_columns
from regard.studio.app import build
from regard.studio.models.shelf import Shelf
from regard.translation import checkpoint
from regard.translation.dataset import read_pairs, read_parallel
from regard.translation.model_folder import MANIFEST, FileInfo, Manifest, TrainedModel
from regard.translation.recipe import Recipe

PORT = 8123
ORIGIN = f"http://127.0.0.1:{PORT}"
PIECES = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"\t", b"\n", b"\r\n", b",", b"[", b"]", b"{", b"}", b"=", b"-1",
    b"1e999", b"nan", b"Infinity", b"null", b"true", b"\xf0\x9f\x98\x80", b"\\ud800", b"9" * 400, b"\x1f\x8b\x08",
    b"'''",
)  # fmt: skip
CONTENTS = 20_000
LINES = b"one two\nthree\nf\xc3\xbcnf\n"
# Where bad lines are passed over and told, nothing else has to be refused.
SEEN: dict[str, tuple[str, ...]] = {"pairs": ("read",)}
PAIRS = b"one two\t1 2\nthree\t3\nfour\tf\xc3\xbcnf\n"
TABLE = b'x,y,z\n1,2,3\n4,5,6\n"7",8,\n'
FIT = {"x": [0, 1], "y": [0, 1], "kernel": "gaussian", "bandwidth": 1, "low": 0, "high": 1, "query": 0.5}
ASKED = {
    "/api/regression/fit": FIT,
    "/api/regression/table": {"text": TABLE.decode(), "x": "x", "y": "y"},
    "/api/translate": {"text": "ab cd", "model": "given"},
    "/api/scores/attend": {"queries": "the cat sat", "keys": "a mat", "score": "gaussian", "width": 1.5},
    "/api/models/begin": {"model": "given"},
}


def changed(content: bytes, draw: random.Random) -> bytes:
    """Some bytes flipped, cut, repeated or put in; now and then none, so that what is read is seen to be read."""
    made = bytearray(content)
    for _ in range(draw.choice((0, 1, 1, 2, 4))):
        place, kind = draw.randint(0, len(made)), draw.randrange(4)
        if kind == 0 and place < len(made):
            made[place] = draw.randrange(256)
        elif kind == 1:
            del made[place : place + draw.randint(1, 20)]
        elif kind == 2:
            made[place:place] = draw.choice(PIECES)
        else:
            made[place:place] = made[: draw.randint(0, 40)] * draw.randint(1, 3)
    return bytes(made)


def run(share: float, seconds: float, seed: int) -> dict[str, Any]:
    """Every reader in turn until `share` of the contents is read; what came out that was neither read nor refused."""
    draw, lost = random.Random(seed), []
    end, wanted = time.perf_counter() + seconds, max(500, round(share * CONTENTS))
    with tempfile.TemporaryDirectory() as place:
        readers = _readers(Path(place))
        counts = {name: {"read": 0, "refused": 0} for name in readers}
        given = 0
        while given < wanted and time.perf_counter() < end:
            for name, (content, read) in readers.items():
                made, given = changed(content, draw), given + 1
                try:
                    counts[name]["read" if read(made) is not False else "refused"] += 1
                except RegardError:
                    counts[name]["refused"] += 1
                except Exception as error:
                    lost.append(f"{name}: {type(error).__name__}: {error}: {made[:300]!r}")
    lost += [
        f"{name}: never {way}" for name, count in counts.items() for way in SEEN.get(name, count) if not count[way]
    ]
    return {"counts": {"contents": given}, "readers": counts, "lost": lost[:50]}


def _readers(place: Path) -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    """Everything that reads what others have written, with something that it reads."""
    folder = save_model(place / "model", random_model())
    file, other, copy = place / "file", place / "other", place / "copy"
    other.write_bytes(LINES)

    def written(content: bytes) -> Path:
        file.write_bytes(content)
        return file

    def model(name: str, mended: bool = False) -> Callable[[bytes], object]:
        def read(content: bytes) -> object:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy)
            (copy / name).write_bytes(content)
            if mended:  # the page says that this is the file, so that it is parsed
                page = Manifest.from_bytes((folder / MANIFEST).read_bytes(), MANIFEST)
                page = replace(page, files={**page.files, name: FileInfo.of(content)})
                (copy / MANIFEST).write_bytes(page.to_bytes())
            return TrainedModel.load(copy)

        return read

    def state(content: bytes, mended: bool = False) -> object:
        digest = hashlib.sha256(content).digest() if mended else b""
        (place / checkpoint.NAME).write_bytes(digest + content)
        return checkpoint.load(place)

    buffer = io.BytesIO()
    torch.save({"standing": {"count": 3}, "weights": torch.arange(5.0)}, buffer)
    saved = buffer.getvalue()
    files = {name: (folder / name).read_bytes() for name in (MANIFEST, "model.safetensors", "source.vocabulary")}
    return {
        "pairs": (PAIRS, lambda content: list(read_pairs(written(content), report=lambda bad: None))),
        "pairs, strictly": (PAIRS, lambda content: list(read_pairs(written(content), strict=True))),
        "pairs, gzipped": (gzip.compress(PAIRS), lambda content: list(read_pairs(written(content), strict=True))),
        "two files": (LINES, lambda content: list(read_parallel(written(content), other, strict=True))),
        "recipe": (Recipe().to_toml().encode(), lambda content: Recipe.read(written(content))),
        "table": (TABLE, lambda content: csv_columns.read_columns("file", written(content), [("x", "x"), ("y", "y")])),
        **{name: (content, model(name)) for name, content in files.items()},
        **{f"{name}, mended": (files[name], model(name, True)) for name in files if name != MANIFEST},
        "checkpoint": (hashlib.sha256(saved).digest() + saved, state),
        "checkpoint, mended": (saved, lambda content: state(content, True)),
        **_requests(folder),
    }


def _requests(folder: Path) -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    with warnings.catch_warnings(action="ignore"):  # it would rather stand on a successor of httpx
        from starlette.testclient import TestClient
    client = TestClient(build(Shelf.of_folder(folder), PORT), base_url=ORIGIN, headers={"origin": ORIGIN})

    def asking(path: str) -> Callable[[bytes], object]:
        def ask(content: bytes) -> bool:
            answer = client.post(path, content=content, headers={"content-type": "application/json"})
            if answer.status_code >= 500 or (answer.status_code >= 400 and not answer.json()["error"]):
                raise AssertionError(f"status {answer.status_code}: {answer.text[:200]}")
            return answer.status_code < 400

        return ask

    return {path: (json.dumps(asked).encode(), asking(path)) for path, asked in ASKED.items()}
