"""A damaged or forged looks.json in the studio's cache: the model is trained anew, and no answer fails."""

import copy
import json
import shutil
import time

import pytest
from tests.studio.conftest import ORIGIN, PORT, TestClient

from regard.studio.app import build
from regard.studio.models.cache import LOOKS, Cache
from regard.studio.models.learning import LearningShelf

SOUND = {
    "sentences": [
        {"language": "de", "text": "ja", "source": ["j", "a"], "target": ["1"]},
        {"language": "en", "text": "no", "source": ["n", "o"], "target": ["0", "1"]},
    ],
    "frames": [
        {"update": 0, "loss": None, "share": None, "weights": []},
        {"update": 8, "loss": 0.5, "share": 0.1, "weights": [[[0.25, 0.75]], [[0, 1], [0.5, 0.5]]]},
    ],
}
# None of these may stand at any place of the file, but for the places named below.
FORGED = [
    5,
    -1,
    0.5,
    10**400,
    float("nan"),
    float("inf"),
    "a",
    "\ud800",
    None,
    True,
    [],
    {},
    [[]],
    [{}],
    [5],
    ["\ud800"],
]
ALLOWED = {
    ("sentences", 0, "text"): ["a"],
    ("sentences", 0, "source"): [],
    ("sentences", 0, "source", 0): ["a"],
    ("sentences", 0, "target"): [],
    ("sentences", 0, "target", 0): ["a"],
    ("frames",): [[]],
    ("frames", 1, "update"): [5],
    ("frames", 1, "loss"): [5, 0.5, None],
    ("frames", 1, "share"): [0.5, None],
    ("frames", 1, "weights"): [[]],
    ("frames", 1, "weights", 0, 0, 0): [0.5],
}
PLACES = [
    (), ("sentences",), ("sentences", 0), ("sentences", 0, "language"), ("frames", 1), ("frames", 1, "weights", 0),
    ("frames", 1, "weights", 0, 0), *ALLOWED,
]  # fmt: skip


@pytest.fixture
def kept(learnt, tmp_path):
    """A cache of its own with the small model in it."""
    wanted, cache, _ = learnt
    own = Cache(tmp_path / "cache")
    shutil.copytree(cache.kept(wanted), own.kept(wanted))
    return wanted, own


def write(kept, text):
    wanted, cache = kept
    (cache.kept(wanted) / LOOKS).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("content", ['{"sentences": 5, "frames": 7}', "[" * 100_000])
def test_a_model_with_a_damaged_file_is_trained_anew_while_every_answer_succeeds(kept, content):
    wanted, cache = kept
    write(kept, content)
    shelf = LearningShelf(cache, [wanted])
    with TestClient(build(shelf, PORT), base_url=ORIGIN, headers={"origin": ORIGIN}) as client:
        assert client.post("/api/models/begin", json={}).status_code == 200
        end = time.monotonic() + 240
        while time.monotonic() < end:
            answer = client.get("/api/models")
            assert answer.status_code == 200
            if (model := answer.json()["models"][0])["state"] == "ready":
                break
            time.sleep(0.1)
        assert model["frames"] > 2
        looks = client.post("/api/models/looks", json={"model": wanted.name})
        assert looks.status_code == 200
        assert len(looks.json()["frames"]) == model["frames"]


def test_a_sound_file_is_taken(kept):
    wanted, cache = kept
    assert cache.looks(wanted)["frames"]
    write(kept, json.dumps(SOUND))
    assert cache.looks(wanted) == SOUND


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_forged_value_makes_the_file_damaged(kept, place):
    wanted, cache = kept
    for value in FORGED:
        found = copy.deepcopy(SOUND)
        if place:
            inner = found
            for step in place[:-1]:
                inner = inner[step]
            inner[place[-1]] = value
        else:
            found = value
        write(kept, json.dumps(found))
        is_allowed = any(value is one or (value == one and type(value) is type(one)) for one in ALLOWED.get(place, []))
        assert (cache.looks(wanted) is not None) == is_allowed, value


@pytest.mark.parametrize("content", ["", "\x00", "[" * 100_000, '{"a":' * 100_000, "9" * 5000])
def test_what_is_not_json_is_damaged(kept, content):
    wanted, cache = kept
    write(kept, content)
    assert cache.looks(wanted) is None


def test_a_name_that_is_missing_or_unknown_makes_the_file_damaged(kept):
    wanted, cache = kept
    for part in ("sentences", "frames"):
        found = {name: value for name, value in SOUND.items() if name != part}
        write(kept, json.dumps(found))
        assert cache.looks(wanted) is None
        for name in SOUND[part][0]:
            found = copy.deepcopy(SOUND)
            del found[part][0][name]
            write(kept, json.dumps(found))
            assert cache.looks(wanted) is None, name
