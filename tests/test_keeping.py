"""What is kept is made once for each stream, outside of modes, few of it; and a recorded graph holds what it reads."""

import pytest
import torch
from tests.modes import Relabelling

from regard import keeping

CPU = torch.device("cpu")


@pytest.fixture
def stream(monkeypatch):
    """Which stream a call runs on, to be changed; None is a graph that is being recorded."""
    now = [0]
    monkeypatch.setattr(keeping, "stream_of", lambda device: now[0])
    monkeypatch.setattr(keeping, "HELD", {})
    return now


def counted():
    """A function that makes something new, and how often it was called."""
    made = []
    return made, lambda: made.append(torch.zeros(1)) or made[-1]


def test_it_is_made_once_for_each_name_and_stream(stream):
    kept, (made, make) = {}, counted()
    first = keeping.find(kept, "a", CPU, make)
    assert keeping.find(kept, "a", CPU, make) is first
    assert keeping.find(kept, "b", CPU, make) is not first
    stream[0] = 7
    other = keeping.find(kept, "a", CPU, make)
    assert other is not first
    assert keeping.find(kept, "a", CPU, make) is other
    assert len(made) == 3
    assert keeping.HELD == {}


def test_a_recorded_graph_reads_what_others_made_and_holds_it(stream):
    kept, (made, make) = {}, counted()
    first = keeping.find(kept, "a", CPU, make)
    stream[0] = None
    assert keeping.find(kept, "a", CPU, make) is first
    assert list(keeping.HELD.values()) == [first]
    own = keeping.find(kept, "b", CPU, make)
    assert own is made[-1]
    assert keeping.find(kept, "b", CPU, make) is not own, "what a graph makes is made by each replay"
    assert len(kept) == len(keeping.HELD) == 1


def test_few_are_kept(stream, monkeypatch):
    monkeypatch.setattr(keeping, "MOST_KEPT", 3)
    kept, (_, make) = {}, counted()
    for name in range(20):
        keeping.find(kept, name, CPU, make)
        assert 1 <= len(kept) <= 3


def test_it_belongs_to_no_mode():
    with torch.inference_mode(), Relabelling():
        assert type(torch.zeros(1)) is not torch.Tensor
        made = keeping.find({}, "a", CPU, lambda: torch.zeros(1))
    assert type(made) is torch.Tensor
    assert not made.is_inference()


def test_a_cpu_has_one_stream():
    assert keeping.stream_of(CPU) == keeping.stream_of(torch.device("meta")) == 0
