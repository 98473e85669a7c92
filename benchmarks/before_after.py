"""Compare this version with an earlier one, call by call: `python -m benchmarks.before_after build/before/src`.

    git worktree add build/before v0.1.0
    python -m benchmarks.before_after build/before/src [--cuda] [--only PATTERN] [--out FILE]

The argument is the folder that contains the earlier `regard`. Each version runs in a process of its own, and the two
take turns pass by pass, as peers do in the other benchmarks. A ratio above 1 means that this version is faster.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch

import regard
from benchmarks.measure import LARGEST_DRIFT, Call, Timer, compare_timers, machine, seconds
from regard import Mask, MultiHeadAttention, attend, inspect
from regard.scores import Additive, Gaussian

ROOT = Path(__file__).parents[1]
# (batch, tokens, dim) of Gaussian attention, and (batch, tokens, dim, hidden) of additive attention.
GAUSSIAN = {
    "cpu": [(8, 256, 64), (2, 1024, 64), (2, 1024, 2)],
    "cuda": [(64, 64, 64), (64, 256, 64), (8, 1024, 64), (8, 4096, 64), (8, 4096, 3)],
}
ADDITIVE = {
    "cpu": [(32, 20, 256, 256), (2, 512, 64, 128), (8, 64, 64, 64)],
    "cuda": [(64, 64, 512, 512), (256, 32, 64, 64), (16, 512, 64, 128), (8, 1024, 64, 128), (8, 4096, 64, 128)],
}


def cases(device: str) -> dict[str, Callable[[], Call]]:
    """Return a function that prepares each call, by the name of the call; both versions must have all they use."""
    found: dict[str, Callable[[], Call]] = {}
    sizes = [(2, 4, 8, 16), (2, 8, 64, 64), (2, 8, 256, 64), (2, 8, 512, 64), (1, 8, 2048, 64)]
    for size in sizes + ([(16, 8, 512, 64)] if device == "cuda" else []):
        for mask in ("none", "causal", "lengths"):
            for training in (False, True):
                name = f"dot {' x '.join(map(str, size))}, mask {mask}, {'both' if training else 'forward'}"
                found[name] = lambda s=size, m=mask, t=training: _dot(s, m, t, device)
    layer_sizes = [(8, 16, 256), (8, 64, 256), (8, 128, 512), (4, 512, 512), (1, 2048, 512)]
    for size in layer_sizes:
        for kind in ("float32", "bfloat16") if device == "cuda" else ("float32",):
            for training in (False, True):
                name = f"layer {' x '.join(map(str, size))}, {kind}, {'both' if training else 'forward'}"
                found[name] = lambda s=size, k=kind, t=training: _layer(s, getattr(torch, k), t, device)
    for keys in (16, 64, 512):
        found[f"recall of one token, {keys} keys"] = lambda k=keys: _recall(k, "scaled_dot", device)
    found["recall of one token, 64 keys, additive"] = lambda: _recall(64, "additive", device)
    found["cross attention, 2 x 4 x 8 x 40 x 16"] = lambda: _small(40, "scaled_dot", device)
    found["cosine, 2 x 4 x 8 x 40 x 16"] = lambda: _small(40, "cosine", device)
    found["Gaussian, 2 x 4 x 8 x 40 x 16"] = lambda: _small(40, Gaussian(1.0), device)
    found["additive, 2 x 4 x 8 x 40 x 16"] = lambda: _small(40, Additive(16, 16, 8).to(device), device)
    found["weights of 2 x 4 x 8 x 40 x 16"] = lambda: _weights(device)
    pairs = ADDITIVE[device] + [(*size, 0) for size in GAUSSIAN[device]]
    for *size, hidden in pairs:
        for training in (False, True):
            name = f"additive, hidden {hidden}," if hidden else "Gaussian"
            name += f" {' x '.join(map(str, size))}, {'both' if training else 'forward'}"
            found[name] = lambda s=size, h=hidden, t=training: _pairs(s, h, t, device)
    for size in [(64, 64, 512), (8, 512, 512)] if device == "cuda" else [(8, 64, 256)]:
        for score in ("additive", "gaussian"):
            for training in (False, True):
                name = f"{score} layer {' x '.join(map(str, size))}, {'both' if training else 'forward'}"
                found[name] = lambda s=size, f=score, t=training: _layer(s, torch.float32, t, device, f)
    return found


def _dot(size: tuple[int, ...], mask: str, training: bool, device: str) -> Call:
    tokens = [torch.randn(size, device=device, requires_grad=training) for _ in range(3)]
    lengths = torch.tensor([size[2] * 3 // 4, size[2]], device=device).repeat(size[0])[: size[0]]
    given = {"none": None, "causal": Mask.causal(), "lengths": Mask.lengths(lengths)}[mask]
    return _both(lambda: attend(*tokens, mask=given), tokens) if training else lambda: attend(*tokens, mask=given)


def _pairs(size: list[int], hidden: int, training: bool, device: str) -> Call:
    """Additive attention for a hidden size, Gaussian attention without one."""
    tokens = [torch.randn(size, device=device, requires_grad=training) for _ in range(3)]
    score = (Additive(size[-1], size[-1], hidden) if hidden else Gaussian(size[-1] ** 0.25)).to(device)
    leaves = [*tokens, *score.parameters()]
    return (
        _both(lambda: attend(*tokens, score), leaves) if training else torch.no_grad()(lambda: attend(*tokens, score))
    )


def _layer(size: tuple[int, ...], dtype: torch.dtype, training: bool, device: str, score: str = "scaled_dot") -> Call:
    layer = MultiHeadAttention(size[2], 8, score).to(device, dtype).train(training)
    tokens = torch.randn(size, device=device, dtype=dtype, requires_grad=training)
    if training:
        return _both(lambda: layer(tokens), [tokens, *layer.parameters()])
    return torch.no_grad()(lambda: layer(tokens))


def _recall(keys: int, score: str, device: str) -> Call:
    layer = MultiHeadAttention(64, 4, score).to(device).eval()
    tokens = torch.randn(2, keys, 64, device=device)
    memory = layer.remember(tokens)
    return torch.no_grad()(lambda: layer.recall(tokens[:, :1], memory))


def _small(keys: int, score: object, device: str) -> Call:
    query, key = torch.randn(2, 4, 8, 16, device=device), torch.randn(2, 4, keys, 16, device=device)
    return torch.no_grad()(lambda: attend(query, key, key, score))


def _weights(device: str) -> Call:
    query, key = torch.randn(2, 4, 8, 16, device=device), torch.randn(2, 4, 40, 16, device=device)
    return torch.no_grad()(lambda: inspect(query, key, key).weights())


def _both(call: Callable[[], torch.Tensor], leaves: list[torch.Tensor]) -> Call:
    return lambda: torch.autograd.grad(call().sum(), leaves)


class Version:
    """A process that times calls of one version of the library."""

    def __init__(self, folder: Path, device: str, threads: int) -> None:
        """Start the process; `folder` contains the package."""
        command = [sys.executable, "-m", "benchmarks.before_after", "--worker", str(folder), "--threads", str(threads)]
        command += ["--cuda"] if device == "cuda" else []
        environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        self.process = subprocess.Popen(
            command, env=environment, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._ask("hello")

    def timer(self, case: str) -> Timer:
        """Return the timer of a case."""
        self._ask(f"case {case}")
        return lambda repeats: float(self._ask(f"time {repeats}"))

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise SystemExit(f"the process of {self.process.args} ended at: {line}")
        return answer


def work(folder: Path, device: str) -> None:
    """Answer the lines of standard input: the other side of `Version`."""
    if not Path(regard.__file__).is_relative_to(folder):
        raise SystemExit(f"regard comes from {regard.__file__}, not from {folder}")
    known, call = cases(device), None
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "case":
            torch.manual_seed(0)
            call = known[rest]()
        if word == "time":
            assert call is not None
            seconds(call, int(rest))  # warm up: the other process had the caches of the processor
            print(seconds(call, int(rest)), flush=True)
        else:
            print("ready", flush=True)


def main() -> None:
    """Time every case on both sides, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="folder that contains the earlier package regard")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--only", default="", help="time only cases whose names match this regular expression")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="write the rows to this JSON file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device, before = "cuda" if options.cuda else "cpu", options.before.resolve()
    torch.set_num_threads(options.threads)
    if options.worker:
        return work(before, device)
    versions = [Version(folder, device, options.threads) for folder in (before, ROOT / "src")]
    rows = []
    for case in (name for name in cases(device) if re.search(options.only, name)):
        timing = compare_timers(dict(zip(("before", "after"), (v.timer(case) for v in versions), strict=True)))
        rows.append({"case": case, **timing})
        old, new = (timing["seconds"][name]["median"] * 1e6 for name in ("before", "after"))
        noisy = "  noisy" if timing["drift"] > LARGEST_DRIFT else ""
        print(f"{case:48s} {old:10.1f} us {new:10.1f} us {timing['ratio']['after']:6.2f}x{noisy}", flush=True)
    for version in versions:
        version.close()
    if options.out:
        date = datetime.now(UTC).date().isoformat()
        kept = {"suite": "before_after", "device": device, "date": date, "machine": machine(device), "rows": rows}
        options.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
