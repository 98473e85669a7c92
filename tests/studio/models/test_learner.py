"""The learner: what it tells while it trains, and what is in the cache afterwards."""

import io
import json

import pytest
from tests.studio.conftest import small

from regard.studio.models.cache import Cache
from regard.studio.models.learner import learn, main
from regard.translation import Translator


def test_a_training_tells_of_itself_in_order(learnt):
    told = learnt[2]
    kinds = [said["kind"] for said in told]
    assert kinds[:3] == ["sentences", "frame", "started"]
    assert kinds[-2:] == ["ended", "kept"]
    assert kinds.count("epoch") == 2
    updates = [said["frame"]["update"] for said in told if said["kind"] == "frame"]
    assert updates[0] == 0
    assert len(updates) > 2
    assert updates == sorted(set(updates))
    json.dumps(told)


def test_the_model_and_its_looks_are_kept(learnt):
    wanted, cache, told = learnt
    assert not cache.part(wanted).exists()
    assert Translator.load(cache.kept(wanted)).translate(["5. Oktober 2010"])[0].text
    looks = cache.looks(wanted)
    assert [frame["update"] for frame in looks["frames"]] == [
        said["frame"]["update"] for said in told if said["kind"] == "frame"
    ]
    assert looks["sentences"] == told[0]["sentences"]


def test_an_interrupted_training_goes_on(tmp_path):
    cache, wanted = Cache(tmp_path), small()

    def interrupt(said):
        if said["kind"] == "epoch":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(wanted, cache, interrupt)
    assert not cache.has(wanted)
    told = []
    learn(wanted, cache, told.append)
    started = next(said for said in told if said["kind"] == "started")
    assert started["update"] > 0
    assert cache.has(wanted)


def test_the_process_refuses_in_a_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    asked = json.dumps({"wanted": small().to_dict(), "cache": str(tmp_path / "file")})
    monkeypatch.setattr("sys.stdin", io.StringIO(asked))
    monkeypatch.setattr("os.nice", lambda steps: steps)
    assert main() == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["kind"] == "refused"
    assert "Not a directory" in last["sentence"]
