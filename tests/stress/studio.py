"""The studio as a process: a thousand requests at once, a thousand hostile ones, and still the right answers."""

import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.stress.attacks import ATTACKS, Answer, Attack, ask, request
from tests.stress.readers import FIT
from tests.translation.models import random_model, save_model

from regard.studio.asked import Asked
from regard.studio.regression import fit

ROOT = Path(__file__).parents[2]
WANTED = {"at once": 1_000, "hostile": 1_000}
PATIENCE = 240.0  # seconds until a request that is told to come again has had its answer
HOSTILE_AT_ONCE = 24  # below the studio's limit of connections, so that each is judged by what it says


def run(share: float, seconds: float, seed: int) -> dict[str, Any]:
    """Start a studio, ask all at once, attack it, ask again."""
    wanted = {name: max(8, round(share * count)) for name, count in WANTED.items()}
    with tempfile.TemporaryDirectory() as place, (Path(place) / "errors").open("w+") as errors:
        folder = save_model(Path(place) / "model", random_model())
        command = [sys.executable, "-m", "regard", "studio", str(folder), "--no-browser"]
        studio = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert studio.stdout is not None
            port = int(re.search(r":(\d+)/", studio.stdout.readline())[1])  # type: ignore[index]
            found = asyncio.run(asyncio.wait_for(_all(port, wanted, random.Random(seed)), seconds))
            if studio.poll() is not None:
                found["lost"].append(f"the studio ended with {studio.returncode}")
        finally:
            studio.terminate()
            studio.wait(30)
        errors.seek(0)
        if "Traceback" in (said := errors.read()):
            found["lost"].append(f"the studio's terminal: {said[-1500:]}")
    return found


async def _all(port: int, wanted: dict[str, int], draw: random.Random) -> dict[str, Any]:
    lost: list[str] = []
    begin = time.perf_counter()
    busy = await _at_once(port, wanted["at once"], lost)
    counts, took = {"at once": wanted["at once"]}, time.perf_counter() - begin
    statuses = await _hostile(port, wanted["hostile"], draw, lost)
    counts["hostile"] = sum(statuses.values())
    await _at_once(port, 8, lost)
    facts = {"told to come again": busy, "seconds at once": round(took, 1), "statuses": dict(sorted(statuses.items()))}
    return {"counts": counts, **facts, "lost": lost[:20]}


async def _at_once(port: int, count: int, lost: list[str]) -> int:
    """So many clients in the same moment; one that is told to come again comes again. How often that was said."""
    ready, told = asyncio.Event(), 0

    async def client(number: int) -> None:
        nonlocal told
        asked, end = FIT | {"query": number / count}, time.perf_counter() + PATIENCE
        content = request("POST", "/api/regression/fit", port, json.dumps(asked).encode())
        await ready.wait()
        while time.perf_counter() < end:
            answer = await ask(port, content)
            if answer.status not in (0, 503):
                break
            told += 1
            if answer.status and not answer.sentence:
                lost.append(f"at once: 503 without a sentence: {answer.body[:100]!r}")
            await asyncio.sleep(0.2 + number % 50 / 25)
        right = json.loads(json.dumps(fit(Asked(asked))))
        if answer.status != 200 or json.loads(answer.body) != right:
            lost.append(f"at once: {answer.status}: {answer.body[:200]!r}")

    clients = [asyncio.create_task(client(number)) for number in range(count)]
    await asyncio.sleep(0.1)
    ready.set()
    await asyncio.gather(*clients)
    return told


async def _hostile(port: int, count: int, draw: random.Random, lost: list[str]) -> Counter[str]:
    """Attacks of every kind in turn, some of them at the same time; slow ones are few, since each takes its time."""
    statuses: Counter[str] = Counter()
    room = asyncio.Semaphore(HOSTILE_AT_ONCE)

    async def attack(one: Attack) -> None:
        async with room:
            answer: Answer = await one.make(port, draw)
        statuses[f"{one.name}: {answer.status or 'hung up'}"] += 1
        if answer.status not in one.expected:
            lost.append(f"{one.name}: {answer.status} instead of {one.expected}: {answer.body[:200]!r}")
        elif answer.status >= 400 and not answer.sentence:
            lost.append(f"{one.name}: {answer.status} without a sentence: {answer.body[:200]!r}")

    quick = [one for one in ATTACKS if not one.is_slow]
    slow = [one for one in ATTACKS if one.is_slow]
    chosen = [slow[number % len(slow)] for number in range(min(16, count // 4))]
    chosen += [quick[number % len(quick)] for number in range(count - len(chosen))]
    await asyncio.gather(*(attack(one) for one in chosen))
    return statuses
