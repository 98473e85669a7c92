"""Readers of outside bytes under fuzzing: whatever comes is read or refused with a sentence, never anything else."""

import json
import random
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.translation.models import random_model, save_model

from regard.errors import RegardError
from regard.regression.report import columns
from regard.studio.app import build
from regard.studio.models.shelf import Shelf
from regard.translation.folder import load
from regard.translation.pairs import read_pairs
from regard.translation.training import Recipe

PORT = 8123
ORIGIN = f"http://127.0.0.1:{PORT}"
PIECES = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"\t", b"\n", b"\r\n", b",", b"[", b"]", b"{", b"}", b"=", b"-1",
    b"1e999", b"nan", b"Infinity", b"null", b"true", b"\xf0\x9f\x98\x80", b"\\ud800", b"9" * 400, b"\x1f\x8b\x08",
    b"'''",
)  # fmt: skip
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


def run(seconds: float, seed: int) -> dict[str, Any]:
    """Every reader in turn until the time is over; what came out that was neither read nor refused."""
    draw, counts, lost = random.Random(seed), {}, []
    with tempfile.TemporaryDirectory() as place:
        readers = _readers(Path(place))
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, (content, read) in readers.items():
                given = changed(content() if callable(content) else content, draw)
                count = counts.setdefault(name, {"read": 0, "refused": 0})
                try:
                    count["read" if read(given) is not False else "refused"] += 1
                except RegardError:
                    count["refused"] += 1
                except Exception as error:
                    lost.append(f"{name}: {type(error).__name__}: {error}: {given[:300]!r}")
    lost += [f"{name}: nothing was ever read, so that nothing was shown" for name in counts if not counts[name]["read"]]
    return {"readers": counts, "lost": lost[:50]}


def _readers(place: Path) -> dict[str, tuple[Any, Callable[[bytes], object]]]:
    folder = save_model(place / "model", random_model())
    file, copy = place / "file", place / "copy"

    def written(content: bytes) -> Path:
        file.write_bytes(content)
        return file

    def model(name: str) -> Callable[[bytes], object]:
        def read(content: bytes) -> object:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy)
            (copy / name).write_bytes(content)
            return load(copy)

        return read

    files = {name: (folder / name).read_bytes() for name in ("model.json", "model.safetensors", "source.vocabulary")}
    return {
        "pairs": (PAIRS, lambda content: list(read_pairs(written(content), report=lambda bad: None))),
        "recipe": (Recipe().to_toml().encode(), lambda content: Recipe.read(written(content))),
        "table": (TABLE, lambda content: columns.read("file", written(content), [("x", "x"), ("y", "y")])),
        **{name: (content, model(name)) for name, content in files.items()},
        **_requests(folder),
    }


def _requests(folder: Path) -> dict[str, tuple[Any, Callable[[bytes], object]]]:
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
