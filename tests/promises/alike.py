"""A program that computes the same attention alone, in eight threads, after a fork and after a spawn.

It prints digests of the bits. One thread of torch's own, and processes before threads: a fork of a process whose pool
of threads has run may hang, whoever forks it, and a thread that is about to end may hold a lock of MKL's memory.
"""

import hashlib
import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import torch

import regard

CALLS = {
    "torch": ("scaled_dot", "torch"),
    "reference": ("gaussian", "reference"),
    "blocked": ("gaussian", "blocked"),
    "blocked additive": ("additive", "blocked"),
}
THREADS, TIMES = 8, 4


def digest(call: str) -> str:
    """Of output and gradient of a call; everything is drawn from a generator of its own."""
    name, backend = CALLS[call]
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(2, count, 6, generator=draw).requires_grad_() for count in (67, 131, 131))
    score: regard.scores.Score | str = name
    if name == "additive":
        score = regard.scores.Additive(6, 6, 8)
        for parameter in score.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draw)
    output = regard.attend(query, key, value, score, regard.Mask.causal(align="lower_right"), backend=backend)
    grads = torch.autograd.grad(output.square().sum(), (query, key, value))
    parts = [part.detach().numpy().tobytes() for part in (output, *grads)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def main() -> None:
    """Every way once; what was seen of each call."""
    found = {"alone": {call: [digest(call)] for call in CALLS}}
    for way in ("fork", "spawn"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            found[way] = {call: pool.map(digest, [call]) for call in CALLS}
    with ThreadPoolExecutor(THREADS) as threads:
        found["threads"] = {call: list(threads.map(digest, [call] * THREADS * TIMES)) for call in CALLS}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
