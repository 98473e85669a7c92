"""Starting the studio: what is missing or wrong is said before anything is served."""

import sys

import pytest
from tests.refuses import refuses

from regard.studio import server
from regard.studio.models.learning import LearningShelf
from regard.studio.start import Wishes, check_extras, run


def test_a_folder_without_a_model_is_refused(tmp_path):
    with refuses("model", "model.json"):
        run(Wishes(model=tmp_path))


def test_without_its_libraries_every_missing_extra_is_named(monkeypatch):
    check_extras()
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with refuses("studio", '"regard[studio,regression]"'):
        check_extras()


@pytest.mark.parametrize("given", [True, False])
def test_the_shelf_is_the_folder_given_or_the_plan(given, learnt, monkeypatch, tmp_path):
    wanted, cache, _ = learnt
    served = []

    def serve(shelf, listener, *, browser):
        listener.close()
        served.append((shelf, browser))

    monkeypatch.setattr(server, "serve", serve)
    run(Wishes(model=cache.kept(wanted) if given else None, browser=False, cache=tmp_path / "models"))
    ((shelf, browser),) = served
    assert browser is False
    assert isinstance(shelf, LearningShelf) is not given
    if given:
        assert list(shelf.books) == ["given"]
    else:
        assert next(iter(shelf.books)) == "additive"
        assert shelf.cache.folder == tmp_path / "models"
        assert not (tmp_path / "models").exists()  # nothing is trained before the room is entered
