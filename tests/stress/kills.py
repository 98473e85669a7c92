"""Trainings killed by SIGKILL at random moments, and gone on with, must end in the same bits as those left alone."""

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.stress.trainings import CHECKPOINT, LOG, MODEL, PLACES, STARTING, Child, differences, killable, result

KILLS = 300
AIMED = (None, None, None, CHECKPOINT, CHECKPOINT, MODEL, LOG)  # what a kill waits for; None: it falls where it will
LOOK = 0.0005  # seconds between two looks at a child
LONGEST = 60.0  # seconds after which a training that is waited for is taken to hang


def run(share: float, seconds: float, seed: int) -> dict[str, Any]:
    """Kill trainings until `share` of the kills are done, and finish each of them."""
    end, wanted, draw = time.perf_counter() + seconds, max(1, round(share * KILLS)), random.Random(seed)
    where, lost, trainings, most = Counter(), [], 0, 0
    with tempfile.TemporaryDirectory() as place:
        while _inside(where) < wanted and time.perf_counter() < end and not lost:
            recipe, whole, out = killable(seed + trainings), Path(place) / "whole", Path(place) / f"{trainings}"
            begin = time.perf_counter()
            if (status := (child := Child(recipe, whole)).wait()) != 0:
                lost.append(f"undisturbed: status {status}: {child.said}")
                break
            lasts, kills = time.perf_counter() - begin, 0
            while True:
                child = Child(recipe, out)
                if _inside(where) < wanted and time.perf_counter() < end and not _strike(child, draw, lasts):
                    lost.append(f"seed {seed + trainings}: it hung in {PLACES[child.place]}")
                status = child.wait()
                if status != -signal.SIGKILL:
                    break
                where[PLACES[child.place]] += 1
                kills += 1
            if status != 0:
                lost.append(f"seed {seed + trainings}, after {kills} kills: status {status}: {child.said}")
                break
            if wrong := differences(result(out), result(whole)):
                lost.append(f"seed {seed + trainings}, after {kills} kills: other {', '.join(wrong)}")
            most = max(most, kills)
            trainings += 1
            for folder in (whole, out):
                shutil.rmtree(folder)
    counts = {"kills": _inside(where)}
    found = {"counts": counts, "trainings": trainings, "most kills of one": most}
    return {**found, "where": dict(where), "lost": lost}


def _inside(where: Counter[str]) -> int:
    """Kills that fell after a training had begun."""
    return where.total() - where[PLACES[STARTING]]


def _strike(child: Child, draw: random.Random, lasts: float) -> bool:
    """Kill it inside its training: at any moment of about a tenth of it, or as it writes; unless it has ended.

    Returns whether it was where it was waited for in time.
    """
    aim, late = draw.choice(AIMED), time.perf_counter() + LONGEST
    while child.is_running and child.place == STARTING and time.perf_counter() < late:
        time.sleep(LOOK)
    if aim != LOG or child.place != LOG:
        _sleep(child, draw.uniform(0.0, lasts / 10))
    while aim is not None and child.is_running and child.place != aim and time.perf_counter() < late:
        pass  # it is there for some hundred microseconds
    if aim is not None:
        time.sleep(draw.uniform(0.0, 0.002))
    in_time = time.perf_counter() < late
    if child.is_running:
        os.kill(child.id, signal.SIGKILL)
    return in_time


def _sleep(child: Child, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while child.is_running and time.perf_counter() < end:
        time.sleep(LOOK)
