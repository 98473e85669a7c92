"""`regard train`: from flags to a trained model, and everything that can be mistyped."""

import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.refuses import refuses
from tests.translation.toy_trainings import make_corpus, make_pairs, make_recipe, write_tsv

from regard.cli import train as verb
from regard.cli.app import run
from regard.cli.train import TABLES, RecipeFlags, TrainOptions, is_main
from regard.cli.train import run as run_training
from regard.errors import RegardError
from regard.translation import monitoring
from regard.translation.dataset import Pair, read_pairs
from regard.translation.model import Architecture
from regard.translation.monitoring import Started
from regard.translation.options import CorpusOptions, HeldOutOptions
from regard.translation.recipe import Data, Training

SMALL = [
    *("--embedding", "8", "--hidden", "8", "--source-unit", "words", "--target-unit", "words", "--warmup", "5"),
    *("--batch-tokens", "60", "--valid-share", "0.1", "--test-share", "0.1", "--device", "cpu"),
]
TWO = ["--epochs", "2"]


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(monitoring, "can_draw", lambda: False)
    path = write_tsv(tmp_path / "pairs.tsv", make_pairs(120, longest=5))
    with path.open("a", encoding="utf-8") as more:
        more.write("no tab\n")
    return path


def test_from_a_file_to_a_model_and_on(file, tmp_path, capsys):
    out = tmp_path / "my model"
    assert run(["train", "--pairs", str(file), "--out", str(out), *SMALL, *TWO, "--attention", "dot"]) == 0
    printed = capsys.readouterr()
    assert "regard: skipped pairs.tsv, line 121: no tab between source and target ('no tab')" in printed.err
    begun, *epochs = printed.err.splitlines()[-3:]
    assert begun.endswith(" parameters")
    assert [line.split("  ")[0] for line in epochs] == ["epoch 1", "epoch 2"]
    assert all(part in epochs[0] for part in ("loss ", " tokens/s", "BLEU ", "exact ", " left"))
    lines = printed.out.splitlines()
    assert lines[0].startswith("The best epoch was ")
    assert lines[1] == f"The model is in {out}, its log and pictures in {out / 'training'}. Try"
    assert lines[2].startswith(f"  regard translate '{out}' ")
    assert lines[3] == f"  regard evaluate '{out}' --pairs '{out / 'test.tsv'}'"
    # the two commands work
    assert run(["translate", str(out), "one two"]) == 0
    assert run(["evaluate", str(out), "--pairs", str(out / "test.tsv")]) == 0
    assert "BLEU" in capsys.readouterr().out
    # the same command goes on where nothing is left to do
    assert run(["train", "--pairs", str(file), "--out", str(out), *SMALL, *TWO, "--attention", "dot"]) == 0
    assert "trained to the end already" in capsys.readouterr().err


def test_flags_go_before_the_file(file, tmp_path, capsys, monkeypatch):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[training]\nepochs = 9\nseed = 5\n[model]\nstate_dropout = 0.3\n", encoding="utf-8")
    seen = []

    def stop(options, on_event):
        seen.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(verb, "run", stop)
    arguments = ["--recipe", str(recipe), "--seed", "6", "--no-joint", "--tied", "--strict", "--threads", "1"]
    with pytest.raises(SystemExit) as left:
        run(["train", "--pairs", str(file), "--out", str(tmp_path), *arguments])
    assert left.value.code == 130
    assert "interrupted; the same command begins anew, as there is no checkpoint yet." in capsys.readouterr().err
    assert seen[0].flags == {"seed": 6, "joint": False, "tied": True}  # and no default among them
    assert (seen[0].recipe, seen[0].threads, seen[0].corpus.strict) == (recipe, 1, True)


def test_every_name_of_a_recipe_is_a_flag_with_its_help(capsys):
    assert run(["train", "--help"]) == 0
    printed = capsys.readouterr().out
    for table in (Architecture, Data, Training):
        for entry in fields(table):
            assert f"--{entry.name.replace('_', '-')} " in printed
    assert "interrupted, the same command goes on from the" in printed
    assert "The size of word vectors." in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "train: got no sentence pairs; needed --corpus, or --pairs, or --source and --target."),
        (["--pairs", "a", "--corpus", "dates"], "train: got several corpora;"),
        (["--pairs", "a", "--epoch", "3"], "Unknown option: --epoch. Did you mean --epochs?"),
        (["--pairs", "a", "--hiden", "3"], "Did you mean --hidden?"),
        (["--pairs", "a", "--epochs", "many"], "--epochs"),
        (["--pairs", "a", "--unit", "rnn"], 'Choose from: "gru", "lstm".'),
        (["--pairs", "a", "--hidden", "0"], "hidden: got 0; needed a whole number from 1 to 65,536."),
        (["--pairs", "a", "--attention", "softmax"], "attention: got 'softmax'; needed one of none, additive,"),
        (["--pairs", "none.tsv"], "pairs: got none.tsv (No such file or directory)"),
        (["--pairs", "a", "--recipe", "none.toml"], "recipe: got none.toml (No such file or directory);"),
        (["--pairs", "a", "--init", "none"], "init: got none, where there is no model.json;"),
        (["--pairs", "a", "--device", "tpu"], "device: got 'tpu'; needed a device"),
        (["--source", "a"], "target: got none; needed both --source and --target."),
    ],
)
def test_a_mistake_is_one_line(arguments, said, capsys, tmp_path):
    assert run(["train", "--out", str(tmp_path / "model"), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_a_link_to_itself_is_no_file_of_pairs(tmp_path, capsys):
    (tmp_path / "loop").symlink_to("loop")
    assert run(["train", "--pairs", str(tmp_path / "loop"), "--out", str(tmp_path / "model")]) == 2
    assert "(Too many levels of symbolic links)" in capsys.readouterr().err


def test_a_number_with_too_many_digits_is_a_mistake_in_the_recipe(tmp_path, capsys):
    (tmp_path / "recipe.toml").write_text(f"[training]\nseed = {'9' * 5000}\n")
    recipe = str(tmp_path / "recipe.toml")
    assert run(["train", "--corpus", "dates", "--out", str(tmp_path / "model"), "--recipe", recipe]) == 2
    assert "recipe.toml: Exceeds the limit" in capsys.readouterr().err


def test_out_is_needed(capsys):
    assert run(["train", "--corpus", "dates"]) == 2
    assert "--out" in capsys.readouterr().err


def interrupted(process):
    """What it says after Ctrl-C, pressed again where one fell into a callback of C, which drops it."""
    for _ in range(4):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    return process.communicate()[1]


def test_as_a_module_and_with_ctrl_c(file, tmp_path):
    """`python -m regard`, which torchrun calls: interrupted it leaves with 130 and a checkpoint."""
    out = tmp_path / "model"
    command = [sys.executable, "-m", "regard", "train", "--pairs", str(file), "--out", str(out), *SMALL]
    endless = [*command, "--epochs", "100000", "--patience", "100000", "--save-seconds", "0", "--threads", "1"]
    # A run in the background ignores Ctrl-C, and what it starts would too.
    was = signal.signal(signal.SIGINT, signal.default_int_handler)
    training = subprocess.Popen(endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, was)
    with training:
        for line in training.stderr:
            if line.startswith("epoch 2"):
                break
        said = interrupted(training)
    assert training.returncode == 130
    assert said.endswith("regard: interrupted; the same command goes on from the last checkpoint.\n")
    assert (out / "training" / "checkpoint.pt").exists()


def test_the_command_that_is_proposed_works_for_a_sentence_with_a_dash():
    pair = SimpleNamespace(source="- one two")
    done = SimpleNamespace(
        ended=SimpleNamespace(epochs=1, best_epoch=1, bleu=0.0, exact=0.0),
        corpus=SimpleNamespace(valid=[pair]),
        test=None,
    )
    options = SimpleNamespace(out=Path("model"), corpus=SimpleNamespace(corpus=None))
    assert "  regard translate model -- '- one two'" in verb._summary(done, options).splitlines()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--hidden", "1000000007", "--heads", "1000000000"], "hidden: got 1000000007; needed a whole number from 1"),
        (["--hidden", "100000000"], "hidden: got 100000000; needed a whole number from 1 to 65,536."),
        (["--hidden", "65536"], "parameters; needed at most 1,073,741,824. Lower hidden, embedding or layers."),
        (["--layers", "99999999"], "layers: got 99999999; needed a whole number from 1 to 100."),
        (
            ["--seed", "18446744073709551616"],
            "seed: got 18446744073709551616; needed a number of at most 4,294",
        ),
        (["--batch-tokens", "99999999999999999999"], "batch_tokens: got 99999999999999999999; needed a number of at"),
        (["--average", "99999999999999999999"], "average: got 99999999999999999999; needed a number of at most 1,000."),
        (["--threads", "99999999999"], "threads: got 99999999999; needed a whole number from 1 to 1,024."),
        (["--device", "meta"], "device: got 'meta'; needed a device that torch can use here."),
        (["--recipe", "/dev/zero"], "recipe: got /dev/zero, which is longer; needed a TOML file of at most 1,048,576"),
    ],
)
def test_absurd_values_are_refused_at_once(file, tmp_path, capsys, flags, said):
    out = tmp_path / "model"
    words = ["--source-unit", "words", "--target-unit", "words", "--valid-share", "0.1", "--test-share", "0.1"]
    begin = time.perf_counter()
    device = [] if "--device" in flags else ["--device", "cpu"]
    assert run(["train", "--pairs", str(file), "--out", str(out), *device, *words, *flags]) == 2
    assert time.perf_counter() - begin < 5
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert not out.exists()


def test_every_name_is_there_with_its_type_and_its_help():
    names = {entry.name: entry for table in TABLES.values() for entry in fields(table)}
    assert set(RecipeFlags.__annotations__) == set(names)
    for name, flag in RecipeFlags.__annotations__.items():
        assert flag.__origin__ == names[name].type
        (parameter,) = flag.__metadata__
        assert len(parameter.help) > 10


def test_none_is_required_and_a_default_is_shown():
    assert RecipeFlags.__required_keys__ == frozenset()
    (parameter,) = RecipeFlags.__annotations__["epochs"].__metadata__
    assert parameter.help.endswith("[default: 30]")


def options(corpus, out, **more):
    """Options with shares that hold pairs out of a small corpus."""
    return TrainOptions(out, corpus, HeldOutOptions(valid_share=0.1, test_share=0.1), **more)


TINY = {"embedding": 8, "hidden": 8, "source_unit": "words", "target_unit": "words", "epochs": 1}


@pytest.fixture
def sources(tmp_path, monkeypatch):
    monkeypatch.setattr(monitoring, "can_draw", lambda: False)
    file = write_tsv(tmp_path / "pairs.tsv", make_pairs(120, longest=5))
    return CorpusOptions(pairs=file)


def test_flags_go_into_the_recipe_and_the_test_part_into_a_file(sources, tmp_path):
    done = run_training(options(sources, tmp_path / "model", flags=TINY))
    assert (done.recipe.model.hidden, done.recipe.training.epochs) == (8, 1)
    assert done.test == tmp_path / "model" / "test.tsv"
    assert tuple(read_pairs(done.test)) == done.corpus.test
    assert done.ended.epochs == 1


def test_what_is_held_out_is_not_written_over_what_is_read(sources, tmp_path):
    file = write_tsv(tmp_path / "test.tsv", make_pairs(40, longest=5))
    before = file.read_bytes()
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    with refuses("out", "test.tsv"):
        run_training(options(replace(sources, pairs=file), tmp_path / "link", flags=TINY))
    assert file.read_bytes() == before


def test_what_looks_like_an_escape_reads_back_as_it_is(tmp_path):
    odd = (Pair("AT&T &apos; &amp;", "a & b"), Pair("x", "y"))
    verb._write_pairs(tmp_path / "new" / "test.tsv", odd)
    assert tuple(read_pairs(tmp_path / "new" / "test.tsv")) == odd


def test_fine_tuning_through_a_folder(sources, tmp_path):
    run_training(options(sources, tmp_path / "first", flags=TINY))
    done = run_training(options(sources, tmp_path / "second", init=tmp_path / "first", flags={"epochs": 1}))
    assert done.recipe.model.hidden == 8
    assert (tmp_path / "second" / "source.vocabulary").read_bytes() == (
        tmp_path / "first" / "source.vocabulary"
    ).read_bytes()
    with refuses("hidden", "16", "--init"):
        run_training(options(sources, tmp_path / "third", init=tmp_path / "first", flags={"hidden": 16}))


def test_only_the_first_process_tells_and_writes(sources, tmp_path, monkeypatch, capsys):
    assert is_main()
    monkeypatch.setenv("RANK", "1")
    assert not is_main()
    with sources.pairs.open("a", encoding="utf-8") as file:
        file.write("no tab\n")
    asked = []
    monkeypatch.setattr(verb, "train_model", lambda *given, **more: asked.append(more))
    run_training(options(sources, tmp_path / "model", flags=TINY))
    assert len(asked) == 1
    assert not (tmp_path / "model").exists()
    assert capsys.readouterr().err == ""


def test_defaults_of_a_built_in_corpus_are_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(verb, "_default_recipe", lambda corpus: make_recipe(seed=17))
    monkeypatch.setattr(verb, "read_corpus", lambda *given: make_corpus())
    monkeypatch.setattr(verb, "train_model", lambda *given, **more: given)
    done = run_training(TrainOptions(tmp_path, CorpusOptions(corpus="lists"), flags={"epochs": 5}))
    assert (done.recipe.training.seed, done.recipe.training.epochs) == (17, 5)
    assert done.test is None


def test_threads_and_device(sources, tmp_path, monkeypatch):
    with refuses("threads", "from 1", "1,024"):
        run_training(options(sources, tmp_path, threads=0))
    with refuses("device", "'gpu'"):
        run_training(options(sources, tmp_path, device="gpu"))
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr(verb, "train_model", lambda *given, **more: more["device"])
    done = run_training(options(sources, tmp_path, threads=3, flags=TINY))
    assert set_to == [3]
    assert done.ended == torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_an_out_that_is_a_file(sources, tmp_path):
    (tmp_path / "taken").touch()
    with refuses("out", "directory", "training", "folder"):
        run_training(options(sources, tmp_path / "taken", flags=TINY))


def test_an_interrupted_training_has_written_its_test_pairs(sources, tmp_path):
    def interrupt(event):
        if isinstance(event, Started):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_training(options(sources, tmp_path / "model", flags=TINY), interrupt)
    assert len(tuple(read_pairs(tmp_path / "model" / "test.tsv"))) > 3


def test_a_refused_training_leaves_the_test_pairs_alone(sources, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise RegardError("out", got="another corpus", needed="the same", repair="Choose another folder.")

    (tmp_path / verb.TEST).write_text("kept\n")
    monkeypatch.setattr(verb, "train_model", refuse)
    with refuses("out", "another", "corpus"):
        run_training(options(sources, tmp_path, flags=TINY))
    assert (tmp_path / verb.TEST).read_text() == "kept\n"
