"""`Effort`: when a search looks, and whom it goes on with."""

from math import inf

import torch
from tests.refuses import refuses

from regard.translation.search import Effort

SOME = torch.tensor([True, False, True, True])


def test_looks_only_when_it_is_time():
    assert Effort(look_every=3, pack_at=0.0).survivors(SOME, 2) is None
    assert Effort(look_every=3, pack_at=0.0).survivors(SOME, 3).tolist() == [0, 2, 3]


def test_packs_when_enough_have_finished():
    assert Effort(pack_at=0.25).survivors(SOME, 1).tolist() == [0, 2, 3]
    assert Effort(pack_at=0.26).survivors(SOME, 1) is None
    assert Effort(pack_at=0.0).survivors(torch.ones(4, dtype=torch.bool), 1) is None


def test_the_end_of_all_is_always_seen():
    assert Effort(pack_at=inf).survivors(torch.zeros(4, dtype=torch.bool), 1).tolist() == []


def test_a_gpu_is_asked_seldom():
    assert Effort.on("cpu") == Effort()
    assert Effort.on("cuda").look_every > 1
    assert not Effort.on("cuda").narrow


def test_never_looking_is_refused():
    with refuses("look_every", "1 or more"):
        Effort(look_every=0)
