"""Memory of each rank and bytes between ranks, measured on gloo processes of this machine.

`python -m benchmarks.sharding measure --out FILE` measures and keeps the rows as JSON;
`python -m benchmarks.sharding paper` renders docs/sharding-on-paper.md from kept figures and stated assumptions.
"""

import argparse
import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing

import regard
from benchmarks import sharding_paper
from benchmarks.measure import machine
from benchmarks.memory import clear_peak, peak
from regard import Mask, sharding
from regard.sharding.traffic import ByteCounts

RANKS = (1, 2, 4, 8)
HEADS, TOKENS, DIM = 16, 4096, 64
ADDITIVE_TOKENS, HIDDEN = 2048, 256
# What is freed goes back to the system at once, and tiles are small: the peak is what the call holds, not what the C
# library hoards.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
CASES = {
    "scaled_dot": ((1, HEADS, TOKENS, DIM), None, "contiguous"),
    "scaled_dot, causal, contiguous": ((1, HEADS, TOKENS, DIM), "causal", "contiguous"),
    "scaled_dot, causal, balanced": ((1, HEADS, TOKENS, DIM), "causal", "balanced"),
    "additive": ((1, ADDITIVE_TOKENS, HIDDEN), None, "contiguous"),
}


def measure(ranks: tuple[int, ...] = RANKS) -> list[dict]:
    """A row for each case and number of ranks."""
    os.environ.update(ENVIRONMENT)
    rows = []
    for number in ranks:
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(_rank, (number, folder), nprocs=number)
            told = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(number)]
        rows += [_row(name, number, [own[name] for own in told]) for name in CASES]
    return rows


def _row(name: str, ranks: int, told: list[dict]) -> dict:
    shape, mask, order = CASES[name]
    return {
        "case": name,
        "shape": shape,
        "mask": mask,
        "order": order,
        "ranks": ranks,
        "peak_bytes": [own["peak_bytes"] for own in told],
        "input_bytes": [own["input_bytes"] for own in told],
        "sent_bytes": [own["sent_bytes"] for own in told],
        "counted_bytes": _counted(shape, ranks),
        "computing_seconds": [own["computing_seconds"] for own in told],
    }


def _counted(shape: tuple[int, ...], ranks: int) -> int:
    """What the library's own count says of all ranks together; keys travel, since all tensors are alike."""
    size = torch.Size(shape).numel() * 4
    counts = ByteCounts(size, size, size, size, log_mass=size // shape[-1], accumulation_factor=1)
    return (ranks - 1) * counts.bytes_per_hop("keys", backward=True)


def _rank(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    found = {name: _measured(*case, rank, ranks, name) for name, case in CASES.items()}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _measured(shape: tuple[int, ...], mask: str | None, order: str, rank: int, ranks: int, name: str) -> dict:
    """One forward and backward pass of a rank: what it holds above its inputs, and what it sends."""
    torch.manual_seed(0)
    score = regard.scores.Additive(HIDDEN, HIDDEN, HIDDEN) if name == "additive" else "scaled_dot"
    wanted = Mask.causal() if mask else None

    def call(tokens: list[Tensor]) -> None:
        output = sharding.attend(
            *tokens, score, wanted, group=dist.group.WORLD, order=order, travel="keys", backend="blocked"
        )
        output.sum().backward()

    def own(tokens: int) -> list[Tensor]:
        whole = (torch.randn(*shape[:-2], tokens, shape[-1]) for _ in range(3))
        return [sharding.split(x, ranks, order)[rank].clone().requires_grad_() for x in whole]

    call(own(64 * ranks))  # what libraries allocate once for themselves is not the operator's memory
    tokens = own(shape[-2])
    dist.barrier()
    clear_peak()
    before, begin, sent = peak(), time.process_time(), [0]
    with mock.patch.object(dist, "P2POp", _counting(dist.P2POp, sent)):
        call(tokens)
    held, seconds = peak() - before, time.process_time() - begin
    inputs = sum(x.numel() * x.element_size() for x in tokens)
    return {"peak_bytes": held, "input_bytes": inputs, "sent_bytes": sent[0], "computing_seconds": seconds}


def _counting(operation, sent: list[int]):
    def counted(kind, tensor, *rest):
        if kind is dist.isend:
            sent[0] += tensor.numel() * tensor.element_size()
        return operation(kind, tensor, *rest)

    return counted


def main() -> None:
    """The two commands."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharding", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure", help="memory of each rank and bytes between ranks, as JSON")
    measured.add_argument("--out", type=Path, required=True)
    measured.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    commands.add_parser("paper", help="render the tables of docs/sharding-on-paper.md")
    wishes = parser.parse_args()
    if wishes.command == "paper":
        sharding_paper.write()
        return
    rows = measure(tuple(wishes.ranks))
    date = datetime.now(UTC).date().isoformat()
    kept = {"suite": "sharding", "device": "cpu", "date": date, "machine": machine("cpu"), "rows": rows}
    wishes.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
