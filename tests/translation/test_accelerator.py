"""Where a training runs: processes, graphs, precision, random states, and the machine."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.translation.toy_trainings import make_corpus, make_recipe
from torch import nn

from regard.translation import accelerator
from regard.translation.accelerator import Processes, describe_changes, environment, matmul_precision
from regard.translation.batching import BatchPlan, make_batch
from regard.translation.training import Trainer

ROOT = Path(__file__).parents[2]


def test_alone_nothing_is_shared(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    processes, planned, model = Processes.init(torch.device("cpu")), BatchPlan((3, 1), 2, 5, 5, 7), nn.Linear(1, 1)
    assert processes.is_main
    assert processes.shard(planned) is planned
    assert processes.wrap(model) is model
    assert processes.broadcast("word") == "word"
    assert processes.gather("word") == ["word"]
    processes.close()


def test_every_row_belongs_to_one_process_and_all_have_the_same_shape():
    planned = BatchPlan(tuple(range(7)), 7, 5, 6, 30)
    shares = [Processes(rank, 3).shard(planned) for rank in range(3)]
    assert sorted(row for share in shares for row in share.rows) == list(range(7))
    assert {(share.batch, share.source, share.target, share.tokens) for share in shares} == {(3, 5, 6, 30)}
    assert [Processes(rank, 3).is_main for rank in range(3)] == [True, False, False]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_two_processes_have_the_loss_curve_of_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.translation.killed", "shared", str(tmp_path), str(port)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "training" / "log.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert len(one) == len(two) == 3  # each epoch once: only the first process writes
    for alone, shared in zip(one, two, strict=True):
        assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-5)
        assert shared["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=1e-4)
        assert (shared["tokens"], shared["update"]) == (alone["tokens"], alone["update"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are of a GPU")
def test_replays_are_the_eager_updates():
    recipe = make_recipe(embedding_dropout=0.0, state_dropout=0.0, readout_dropout=0.0)
    results = []
    for cuda_graphs in (False, True):
        with torch.device("cpu"), Trainer(recipe, make_corpus(), device="cuda", cuda_graphs=cuda_graphs) as trainer:
            for step in range(5):
                plan = BatchPlan((step % 2,), 1, 4, 4, 3)
                trainer.update(make_batch(plan, [[4, 5], [6, 7, 8]], [[5, 6], [7, 8]]))
            results.append((trainer.mean_loss(), [each.detach().cpu() for each in trainer.model.parameters()]))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-4)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-3, atol=1e-5)


def settings():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def fail_inside(precision):
    with matmul_precision(precision):
        raise KeyError(settings())


@pytest.mark.parametrize(("precision", "fast"), [("float32", False), ("tf32", True), ("bfloat16", True)])
def test_the_setting_holds_inside_only_whatever_happens_there(precision, fast):
    before = settings()
    with pytest.raises(KeyError) as raised:
        fail_inside(precision)
    assert raised.value.args[0] == (fast, fast)
    assert settings() == before


def test_drawing_goes_on_where_it_was():
    cpu = torch.device("cpu")
    torch.rand(3)
    kept = accelerator.get_rng_state(cpu)
    drawn = torch.rand(5)
    torch.rand(7)
    accelerator.set_rng_state(cpu, kept)
    assert torch.equal(torch.rand(5), drawn)


def test_facts_name_build_processor_and_threads():
    told = environment(torch.device("cpu"))
    assert told["torch"] == torch.__version__
    assert all(type(fact) is str for fact in told.values())  # a checkpoint that executes nothing holds no other type
    assert told["threads"] == str(torch.get_num_threads())
    assert told["processor"]
    assert describe_changes(told, environment(torch.device("cpu"))) == ""


def test_differences_are_told_in_words():
    then = {"torch": "2.12", "threads": "2"}
    assert describe_changes(then, {"torch": "2.13", "threads": "2"}) == "torch was 2.12, is 2.13"
    assert describe_changes(then, {"threads": "4", "gpu": "H200"}) == (
        "gpu was not used, is H200; threads was 2, is 4; torch was 2.12, is not used"
    )
