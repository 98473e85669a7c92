"""`run`: from wishes to a trained model; the test part is written so that it reads back."""

from dataclasses import replace

import pytest
import torch
from tests.refuses import refuses
from tests.translation.toy_trainings import make_corpus, make_pairs, make_recipe, write_tsv

from regard.errors import RegardError
from regard.translation import monitoring, train_procedure
from regard.translation.dataset import Pair, Sources, read_pairs
from regard.translation.monitoring import Started
from regard.translation.train_procedure import Wishes, leads, run

TINY = {"embedding": 8, "hidden": 8, "source_unit": "words", "target_unit": "words", "epochs": 1}


@pytest.fixture
def sources(tmp_path, monkeypatch):
    monkeypatch.setattr(monitoring, "can_draw", lambda: False)
    file = write_tsv(tmp_path / "pairs.tsv", make_pairs(120, longest=5))
    return Sources(pairs=file, valid_share=0.1, test_share=0.1)


def test_flags_go_into_the_recipe_and_the_test_part_into_a_file(sources, tmp_path):
    done = run(Wishes(sources, tmp_path / "model", flags=TINY))
    assert (done.recipe.model.hidden, done.recipe.training.epochs) == (8, 1)
    assert done.test == tmp_path / "model" / "test.tsv"
    assert tuple(read_pairs(done.test)) == done.corpus.test
    assert done.ended.epochs == 1


def test_what_is_held_out_is_not_written_over_what_is_read(sources, tmp_path):
    file = write_tsv(tmp_path / "test.tsv", make_pairs(40, longest=5))
    before = file.read_bytes()
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    with refuses("out", "test.tsv"):
        run(Wishes(replace(sources, pairs=file), tmp_path / "link", flags=TINY))
    assert file.read_bytes() == before


def test_what_looks_like_an_escape_reads_back_as_it_is(tmp_path):
    odd = (Pair("AT&T &apos; &amp;", "a & b"), Pair("x", "y"))
    train_procedure._write_pairs(tmp_path / "new" / "test.tsv", odd)
    assert tuple(read_pairs(tmp_path / "new" / "test.tsv")) == odd


def test_fine_tuning_through_a_folder(sources, tmp_path):
    run(Wishes(sources, tmp_path / "first", flags=TINY))
    done = run(Wishes(sources, tmp_path / "second", init=tmp_path / "first", flags={"epochs": 1}))
    assert done.recipe.model.hidden == 8
    assert (tmp_path / "second" / "source.vocabulary").read_bytes() == (
        tmp_path / "first" / "source.vocabulary"
    ).read_bytes()
    with refuses("hidden", "16", "--init"):
        run(Wishes(sources, tmp_path / "third", init=tmp_path / "first", flags={"hidden": 16}))


def test_only_the_first_process_tells_and_writes(sources, tmp_path, monkeypatch, capsys):
    assert leads()
    monkeypatch.setenv("RANK", "1")
    assert not leads()
    with sources.pairs.open("a", encoding="utf-8") as file:
        file.write("no tab\n")
    asked = []
    monkeypatch.setattr(train_procedure, "train", lambda *given, **more: asked.append(more))
    run(Wishes(sources, tmp_path / "model", flags=TINY))
    assert len(asked) == 1
    assert not (tmp_path / "model").exists()
    assert capsys.readouterr().err == ""


def test_defaults_of_a_built_in_corpus_are_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(train_procedure, "_defaults", lambda corpus: make_recipe(seed=17))
    monkeypatch.setattr(train_procedure, "read", lambda sources, tell: make_corpus())
    monkeypatch.setattr(train_procedure, "train", lambda *given, **more: given)
    done = run(Wishes(Sources(corpus="lists"), tmp_path, flags={"epochs": 5}))
    assert (done.recipe.training.seed, done.recipe.training.epochs) == (17, 5)
    assert done.test is None


def test_threads_and_device(sources, tmp_path, monkeypatch):
    with refuses("threads", "from 1", "1024"):
        run(Wishes(sources, tmp_path, threads=0))
    with refuses("device", "'gpu'"):
        run(Wishes(sources, tmp_path, device="gpu"))
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr(train_procedure, "train", lambda *given, **more: more["device"])
    done = run(Wishes(sources, tmp_path, threads=3, flags=TINY))
    assert set_to == [3]
    assert done.ended == torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_an_out_that_is_a_file(sources, tmp_path):
    (tmp_path / "taken").touch()
    with refuses("out", "directory", "training", "folder"):
        run(Wishes(sources, tmp_path / "taken", flags=TINY))


def test_an_interrupted_training_has_written_its_test_pairs(sources, tmp_path):
    def interrupt(event):
        if isinstance(event, Started):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Wishes(sources, tmp_path / "model", flags=TINY), interrupt)
    assert len(tuple(read_pairs(tmp_path / "model" / "test.tsv"))) > 3


def test_a_refused_training_leaves_the_test_pairs_alone(sources, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise RegardError("out", got="another corpus", needed="the same", repair="Choose another folder.")

    (tmp_path / train_procedure.TEST).write_text("kept\n")
    monkeypatch.setattr(train_procedure, "train", refuse)
    with refuses("out", "another", "corpus"):
        run(Wishes(sources, tmp_path, flags=TINY))
    assert (tmp_path / train_procedure.TEST).read_text() == "kept\n"
