"""Attention from eight threads at once, after a fork and in a process started anew: the bits of a call alone."""

import hashlib
import multiprocessing
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from tests.contracts.agreement import DTYPES
from tests.contracts.cases import DOTS
from tests.stress.calls import BIASES, MASKS, NAMES, AnyCall, Made, make, results

from regard.errors import RegardError

THREADS, DIFFERENT, WANTED = 8, 64, {"in threads": 4_096, "forks": 64, "spawns": 8}

LONGEST = 60.0  # seconds that a process may take

Asked = tuple[AnyCall, str]


def run(share: float, seconds: float, seed: int) -> dict[str, Any]:
    """Each way until `share` of its counts is done; what had other bits than alone."""
    torch.set_num_threads(1)
    end, draw = time.perf_counter() + seconds, random.Random(seed)
    wanted = {way: max(1, round(share * count)) for way, count in WANTED.items()}
    counts, lost = dict.fromkeys(WANTED, 0), []
    asked = _drawn(draw)
    alone = {one: digest(one) for one in asked}
    if len(set(alone.values())) < len(asked):
        lost.append("different calls have the same bits: the digest sees nothing")
    # Processes first: a fork copies no threads.
    for way, method in (("forks", "fork"), ("spawns", "spawn")):
        context = multiprocessing.get_context(method)
        while counts[way] < wanted[way] and time.perf_counter() < end:
            some = draw.sample(asked, 8)
            lost += _others(way, some, _told_by_another(context, some), alone)
            counts[way] += 1
    with ThreadPoolExecutor(THREADS) as threads:
        while counts["in threads"] < wanted["in threads"] and time.perf_counter() < end:
            some = draw.choices(asked, k=256)
            lost += _others("in threads", some, list(threads.map(digest, some)), alone)
            counts["in threads"] += len(some)
    return {"counts": counts, "different calls": len(asked), "threads": THREADS, "lost": lost[:20]}


def _told_by_another(context: Any, some: list[Asked]) -> list[str]:
    """The digests of one process, without a thread on this side: a fork would copy what it locks."""
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(writer, some))
    process.start()
    writer.close()
    try:
        return reader.recv() if reader.poll(LONGEST) else ["no answer in time"] * len(some)
    except EOFError:
        return ["it died"] * len(some)
    finally:
        process.kill()
        process.join()


def _tell(writer: Any, some: list[Asked]) -> None:
    writer.send([digest(one) for one in some])


def digest(asked: Asked) -> str:
    """Of the bits of output, log_mass and every gradient."""
    call, backend = asked
    torch.set_num_threads(1)
    found = results(_made(call), backend, call.dtype, log_mass=backend != "torch")
    parts = (found[name].contiguous().flatten().view(torch.uint8) for name in sorted(found))
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()


@cache
def _made(call: AnyCall) -> Made:
    """The numbers of a call, which threads share, the score included; made once, before there are threads."""
    made = make(call)
    return made._replace(score=made.score.to(call.dtype)) if isinstance(made.score, torch.nn.Module) else made


def _drawn(draw: random.Random) -> list[Asked]:
    """Calls of every score, each with a backend that takes it."""
    found: list[Asked] = []
    while len(found) < DIFFERENT:
        name = NAMES[len(found) % len(NAMES)]
        backend = draw.choice(("torch", "reference", "blocked") if name in DOTS else ("reference", "blocked"))
        call = AnyCall(
            name, (draw.choice(MASKS), "none"), "", draw.choice(BIASES[:4]), draw.choice(DTYPES), (2,), "",
            draw.randint(2, 33), draw.randint(2, 131), 0.4, True, draw.randrange(2**31),
        )  # fmt: skip
        try:
            digest((call, backend))
        except RegardError:
            continue  # torch refuses some biases
        found.append((call, backend))
    return found


def _others(way: str, asked: list[Asked], told: list[str], alone: dict[Asked, str]) -> list[str]:
    return [f"{way}: other bits: {one}" for one, bits in zip(asked, told, strict=True) if bits != alone[one]]
