"""Sharded attention on paper: bytes and times for 8 to 1,024 GPUs, computed from stated figures.

The tables of docs/sharding-on-paper.md stand between markers and are rendered here, from the library's own count of
bytes (`regard.sharding.traffic`), from results kept in benchmarks/results, and from the assumptions below.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import pages
from regard.sharding.traffic import ByteCounts, choose_travel

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "sharding-on-paper.md"
RESULTS = Path(__file__).parent / "results"

GPUS = (8, 16, 32, 64, 128, 256, 512, 1024)
A_MACHINE = 8


class Link(NamedTuple):
    """Bytes a second that a GPU sends to the next while it receives as many, and seconds until a message is there."""

    name: str
    bandwidth: float
    latency: float


# Assumptions, measured by nobody here: eight GPUs in a machine on links of 900 GB/s in both directions together, and
# a network card of 400 Gbit/s for each GPU.
WITHIN = Link("within a machine", 450e9, 10e-6)
BETWEEN = Link("between machines", 50e9, 20e-6)


def matrix_rate() -> float:
    """Operations a second of large products in half precision, as measured on one H200.

    No attention kernel is faster, so that computing takes longer than this and hides more of the moving.
    """
    return json.loads((RESULTS / "additive-kernels-cuda.json").read_text())["ceilings"]["matrix_flops"]


class Work(NamedTuple):
    """One call: bytes of a rank's tensors and seconds for a block of them, as functions of its number of tokens.

    forward, backward: seconds that a rank computes on one block of that many queries and keys.
    """

    name: str
    load: Callable[[float], ByteCounts]
    forward: Callable[[float], float]
    backward: Callable[[float], float]


def dot(heads: int = 32, kv_heads: int = 32, dim: int = 128, share: float = 1.0) -> Work:
    """Scaled dot products in bfloat16; share: of the pairs that a mask leaves.

    A block has 2 products forward; backward those 2 again, and 5 more. A product is 2 flops for each pair and entry.
    """
    product = 2 * heads * dim * share / matrix_rate()

    def load(tokens: float) -> ByteCounts:
        keys, queries = tokens * kv_heads * dim * 2, tokens * heads * dim * 2
        return ByteCounts(queries, keys, keys, queries, tokens * heads * 4, 2)  # pyrefly: ignore

    name = f"scaled dot, {heads} heads of {dim}, bfloat16"
    name += f", {kv_heads} heads of keys" * (kv_heads != heads) + ", causal, balanced" * (share < 1)
    return Work(name, load, lambda t: 2 * product * t * t, lambda t: 7 * product * t * t)


def additive() -> Work:
    """The additive score in float32, at the rate kept in benchmarks/results/additive-cuda.json for one H200."""
    kept = json.loads((RESULTS / "additive-cuda.json").read_text())["rows"]
    exact = [row for row in kept if row["hidden"] == 128 and row.get("tolerance") is None]
    rows = {row["backward"]: row for row in exact}
    first = rows[False]
    pairs, hidden, value_dim = first["batch"] * first["tokens"] ** 2, first["hidden"], first["value_dim"]
    forward, both = (rows[backward]["seconds"]["regard.attend"]["median"] / pairs for backward in (False, True))

    def load(tokens: float) -> ByteCounts:
        token = tokens * 4
        return ByteCounts(token * hidden, token * hidden, token * value_dim, token * value_dim, token, 1)  # pyrefly: ignore

    name = f"additive, hidden {hidden}, values of {value_dim}, float32"
    # The backward pass recomputes the forward one of each block.
    return Work(name, load, lambda t: forward * t * t, lambda t: both * t * t)


class Pass(NamedTuple):
    """What one GPU does in a forward and a backward pass over all others: bytes, and seconds of each kind."""

    sent: float
    computing: float
    moving: float
    together: float


def estimate(work: Work, tokens: float, gpus: int, *, backward: bool = True) -> Pass:
    """tokens: of one GPU. A hop takes as long as the slower of computing and moving, which overlap."""
    link, hops = (WITHIN if gpus <= A_MACHINE else BETWEEN), gpus - 1
    load = work.load(tokens)
    moves = choose_travel(load, dict.fromkeys(("keys", "queries"), hops), "auto", backward=backward)
    forth = load.bytes_per_hop(moves, backward=False)
    moved = [forth, load.bytes_per_hop(moves, backward=True) - forth][: 1 + backward]
    computed = [work.forward(tokens), work.backward(tokens)][: 1 + backward]
    waited = [link.latency + part / link.bandwidth for part in moved]
    together = sum(own + hops * max(own, wait) for own, wait in zip(computed, waited, strict=True))
    return Pass(hops * sum(moved), gpus * sum(computed), hops * sum(waited), together)


def fewest_tokens(work: Work, link: Link, *, backward: bool) -> float:
    """How many tokens a GPU must have so that a hop's computing takes as long as its moving, without latency.

    Bytes grow with the tokens of a GPU, pairs with their square.
    """
    load, hops = work.load(1.0), dict.fromkeys(("keys", "queries"), 1)
    moved = load.bytes_per_hop(choose_travel(load, hops, "auto", backward=backward), backward=backward)
    return moved / link.bandwidth / (work.forward(1.0) + (work.backward(1.0) if backward else 0.0))


def table(work: Work, tokens: int) -> str:
    """A row for each number of GPUs that share a sequence of `tokens` tokens, forward and backward."""
    lines = [
        f"{work.name}; {tokens:,} tokens; forward and backward, one layer:",
        "",
        "| GPUs | tokens each | each sends | computing | moving | both at once | moving / computing |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for gpus in GPUS:
        found = estimate(work, tokens / gpus, gpus)
        cells = [f"{gpus:,}", f"{tokens // gpus:,}", _bytes(found.sent), *map(_seconds, found[1:])]
        lines.append(f"| {' | '.join(cells)} | {found.moving / found.computing:.2g} |")
    return "\n".join(lines)


def thresholds() -> str:
    """From how many tokens a GPU on computing takes longer than moving."""
    heads = ("forward, within", "forward, between", "with backward, within", "with backward, between")
    lines = [f"| tokens a GPU needs | {' | '.join(heads)} |", "|---|---:|---:|---:|---:|"]
    for work in (dot(), dot(share=0.5), dot(kv_heads=8), dot(kv_heads=8, share=0.5), additive()):
        counts = [fewest_tokens(work, link, backward=b) for b in (False, True) for link in (WITHIN, BETWEEN)]
        lines.append(f"| {work.name} | {' | '.join(f'{count:,.0f}' for count in counts)} |")
    return "\n".join(lines)


def measured() -> str:
    """What benchmarks/results/sharding.json says of processes on one CPU."""
    kept = json.loads((RESULTS / "sharding.json").read_text())
    lines = [
        "| call | ranks | inputs of a rank | it holds beyond them, at most | it sends | its work, fewest to most |"
    ]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for row in kept["rows"]:
        size = " x ".join(map(str, row["shape"]))
        most = [max(row[name]) for name in ("input_bytes", "peak_bytes", "sent_bytes")]
        times = row["computing_seconds"]
        share = f"{min(times) / max(times):.0%}"
        lines.append(f"| {row['case']}, {size} | {row['ranks']} | {' | '.join(map(_bytes, most))} | {share} |")
    return "\n".join(lines)


def rates() -> str:
    """What was measured of one GPU, and where it is kept."""
    kept = json.loads((RESULTS / "additive-kernels-cuda.json").read_text())
    return (
        f"Measured on one {kept['machine']['processor']}: {matrix_rate() / 1e12:.0f} TFLOP/s in large products in half "
        "precision (`benchmarks/results/additive-kernels-cuda.json`), taken for the products of a dot product in "
        "bfloat16; and the time of the additive score (`benchmarks/results/additive-cuda.json`), whose pairs are far "
        "more work than those of a dot product."
    )


def render() -> dict[str, str]:
    """The tables of the page, by the names in their markers."""
    tables = {
        "rates": rates(),
        "dot": table(dot(), 2**20),
        "additive": table(additive(), 2**16),
        "thresholds": thresholds(),
        "measured": measured(),
    }
    return {f"sharding {name}": f"\n{text}\n\n" for name, text in tables.items()}


def write() -> None:
    """Put the tables between their markers."""
    pages.renew(PAGE, render())


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _seconds(seconds: float) -> str:
    return (
        f"{seconds:.3g} s"
        if seconds >= 1
        else f"{seconds * 1e3:.3g} ms"
        if seconds >= 1e-3
        else f"{seconds * 1e6:.3g} µs"
    )
