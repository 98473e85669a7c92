"""The shelf that fills itself: models appear as they are learnt, damaged ones anew, and stopping stops the process."""

import fcntl
import shutil
import time

import pytest
from tests.refuses import refuses
from tests.studio.conftest import small

from regard.studio.models import learning
from regard.studio.models.cache import Cache
from regard.studio.models.learning import LearningShelf


def wait(shelf, condition, seconds=240):
    """Until the facts of the models satisfy the condition."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        models = {model["name"]: model for model in shelf.facts()["models"]}
        if condition(models):
            return models
        time.sleep(0.05)
    raise AssertionError(models)


@pytest.fixture
def kept(learnt, tmp_path):
    """A cache of its own with the small model in it."""
    wanted, cache, _ = learnt
    copy = Cache(tmp_path / "cache")
    shutil.copytree(cache.kept(wanted), copy.kept(wanted))
    return wanted, copy


def test_what_is_kept_is_ready_without_training(kept, monkeypatch):
    wanted, cache = kept
    monkeypatch.setattr(learning, "LEARNER", "no.such.module")
    shelf = LearningShelf(cache, [wanted])
    assert shelf.facts()["models"][0]["state"] == "waiting"
    shelf.begin()
    shelf.begin()
    model = wait(shelf, lambda models: models["small"]["state"] == "ready")["small"]
    assert model["validated_on"] == 20
    assert model["frames"] > 2
    assert shelf.translator("small").translate(["5. Oktober 2010"])[0].text
    assert len(shelf.looks("small", 1)["frames"]) == model["frames"] - 1
    shelf.stop()


def test_a_damaged_model_is_learnt_anew_in_a_process_and_told_of_while_it_learns(kept):
    wanted, cache = kept
    weights = cache.kept(wanted) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    shelf = LearningShelf(cache, [wanted])
    shelf.begin()
    facts = wait(shelf, lambda models: models["small"]["frames"] > 1)["small"]
    assert facts["state"] == "training"
    assert facts["updates"] > 0
    with refuses("model", "training", "trained", "model"):
        shelf.translator("small")
    wait(shelf, lambda models: models["small"]["state"] == "ready")
    assert shelf.translator("small").translate(["5. Oktober 2010"])[0].text
    shelf.stop()


def test_stopping_ends_the_process_and_leaves_no_model(tmp_path):
    shelf = LearningShelf(Cache(tmp_path), [small(epochs=500, patience=500), small("other")])
    shelf.begin()
    wait(shelf, lambda models: models["small"]["frames"] > 1)
    process = shelf._process
    shelf.stop()
    assert process.poll() is not None
    assert not shelf.cache.has(shelf.plan[0])
    assert shelf.facts()["models"][1]["state"] == "waiting"


def test_a_model_that_another_studio_is_learning_is_waited_for(learnt, tmp_path, monkeypatch):
    wanted, finished, _ = learnt
    monkeypatch.setattr(learning, "BETWEEN", 0.1)
    cache = Cache(tmp_path)
    lock = cache.part(wanted) / "training" / "lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        shelf = LearningShelf(cache, [wanted])
        shelf.begin()
        wait(shelf, lambda models: models["small"]["state"] == "training")
        wait(shelf, lambda models: models["small"]["state"] == "waiting")
        shutil.copytree(finished.kept(wanted), cache.kept(wanted))  # the other one is done
        wait(shelf, lambda models: models["small"]["state"] == "ready")
    shelf.stop()


def test_a_cache_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    shelf = LearningShelf(Cache(tmp_path / "file"), [small()])
    shelf.begin()
    model = wait(shelf, lambda models: models["small"]["state"] == "refused")["small"]
    assert "Pass --cache with another folder." in model["refusal"]
    shelf.stop()


def test_a_learner_that_breaks_down_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "LEARNER", "no.such.module")
    shelf = LearningShelf(Cache(tmp_path), [small()])
    shelf.begin()
    model = wait(shelf, lambda models: models["small"]["state"] == "refused")["small"]
    assert model["refusal"].startswith("The training ended unexpectedly")
    log = tmp_path / f"{small().folder}.log"
    assert str(log) in model["refusal"]
    assert "no.such.module" in log.read_text(encoding="utf-8") or "No module" in log.read_text(encoding="utf-8")
    shelf.stop()
