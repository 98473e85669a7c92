"""Several processes that share every batch."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.translation.batching import Plan
from regard.translation.training.distributed import Group

ROOT = Path(__file__).parents[3]


def test_alone_nothing_is_shared(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    group, planned, model = Group.join(torch.device("cpu")), Plan((3, 1), 2, 5, 5, 7), nn.Linear(1, 1)
    assert group.leads
    assert group.share(planned) is planned
    assert group.wrap(model) is model
    assert group.tell("word") == "word"
    assert group.gather("word") == ["word"]
    group.leave()


def test_every_row_belongs_to_one_process_and_all_have_the_same_shape():
    planned = Plan(tuple(range(7)), 7, 5, 6, 30)
    shares = [Group(rank, 3).share(planned) for rank in range(3)]
    assert sorted(row for share in shares for row in share.rows) == list(range(7))
    assert {(share.batch, share.source, share.target, share.tokens) for share in shares} == {(3, 5, 6, 30)}
    assert [Group(rank, 3).leads for rank in range(3)] == [True, False, False]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_two_processes_have_the_loss_curve_of_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.translation.training.killed", "shared", str(tmp_path), str(port)]
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
