"""`regard train`: a happy path, the words beside it, and everything that can be mistyped."""

import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.translation.toy_trainings import make_pairs, write_tsv

from regard.cli import train as verb
from regard.cli.app import run
from regard.translation import monitoring
from regard.translation.model import Architecture
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

    def stop(wishes, listen):
        seen.append(wishes)
        raise KeyboardInterrupt

    monkeypatch.setattr(verb, "run", stop)
    arguments = ["--recipe", str(recipe), "--seed", "6", "--no-joint", "--tied", "--strict", "--threads", "1"]
    with pytest.raises(SystemExit) as left:
        run(["train", "--pairs", str(file), "--out", str(tmp_path), *arguments])
    assert left.value.code == 130
    assert "interrupted; the same command begins anew, as there is no checkpoint yet." in capsys.readouterr().err
    assert seen[0].flags == {"seed": 6, "joint": False, "tied": True}  # and no default among them
    assert (seen[0].recipe, seen[0].threads, seen[0].sources.strict) == (recipe, 1, True)


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
        ([], "train: got nothing to train on; needed --corpus, or --pairs, or --source and --target."),
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
    wishes = SimpleNamespace(out=Path("model"), sources=SimpleNamespace(corpus=None))
    assert "  regard translate model -- '- one two'" in verb._summary(done, wishes).splitlines()


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
        (["--threads", "99999999999"], "threads: got 99999999999; needed a whole number from 1 to 1024."),
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
