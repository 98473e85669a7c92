"""Every backend x score x mask x dtype agrees with the reference: output, log_mass and every gradient."""

import pytest
import torch

from regard import RegardError, scores, why
from regard.backends import choice
from regard.backends.blocked import sweep
from regard.backends.blocked.tiles import DotTiles
from regard.scores.forms import DotForm
from tests.contracts.agreement import DTYPES, Case, build, disagreements
from tests.contracts.cases import MASKS, POSITIONED, SCORES, SETTINGS

JUDGED = [name for name in choice.BACKENDS if name != "reference"]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """The smallest tiles there are, 16 queries by 64 keys: every case has several and a ragged last one."""
    monkeypatch.setitem(sweep.TILE_ELEMENTS, "cpu", 1)


def is_dot(score: str) -> bool:
    call = build(Case(score), torch.float32)
    form = call.score.pair(call.score.prepare_query(call.query), call.score.prepare_key(call.key))
    return isinstance(form, DotForm) and form.softcap is None


def runs(backend: str, case: Case) -> bool:
    """Which cases a backend takes, said here a second time: a backend that refuses more than this fails."""
    if backend == "torch":
        return is_dot(case.score) and (case.dtype in (torch.float32, torch.float64) or SETTINGS[case.mask] is None)
    return True


CASES = [
    Case(score, mask, dtype, log_mass=backend != "torch")
    for backend in JUDGED
    for score in (*SCORES, *POSITIONED)
    for mask in MASKS
    for dtype in DTYPES
]
