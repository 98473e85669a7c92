"""The README's table, rendered from the result files and from nothing else: `python -m benchmarks.report`."""

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- generated: benchmarks -->", "<!-- end -->"


def write() -> None:
    """Put the rendered tables between the markers of README.md."""
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(BEGIN)
    after = rest.split(END, 1)[1]
    readme.write_text(f"{before}{BEGIN}\n{render()}{END}{after}")


def render() -> str:
    """One table of what a call costs, one of what it holds, and the machine they were measured on."""
    lines = [
        "| what | against | time of the other | time of regard | ratio |",
        "|---|---|---|---|---|",
    ]
    suites = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    for name, describe in (("dot", _dot), ("multihead", _multihead), ("additive", _additive)):
        lines += [_row(describe(row), row) for row in suites.get(name, {"rows": []})["rows"]]
    for row in suites.get("memory", {"rows": []})["rows"]:
        lines.append(_memory(row))
    machines = {_machine(suite) for suite in suites.values()}
    notes = [f"Medians of interleaved passes (`make bench`), {machine}." for machine in sorted(machines)]
    return "\n".join([*lines, "", *notes, ""])


def _row(what: str, row: dict) -> str:
    (peer, theirs), (_, ours) = row["seconds"].items()
    noisy = " (noisy)" if row["drift"] > 0.15 else ""
    ratio = theirs["median"] / ours["median"]
    return f"| {what} | `{peer}` | {_time(theirs['median'])} | {_time(ours['median'])} | {ratio:.2f}x{noisy} |"


def _dot(row: dict) -> str:
    size = " x ".join(str(n) for n in row["shape"])
    mask = "" if row["mask"] == "none" else f", mask {row['mask']}"
    return f"`attend`, scaled dot, {size}{mask}, {_direction(row['backward'])}"


def _multihead(row: dict) -> str:
    kind = "training" if row["training"] else "evaluation"
    return f"`MultiHeadAttention`, {row['batch']} x {row['tokens']} x {row['dim']}, {row['heads']} heads, {kind}"


def _additive(row: dict) -> str:
    size = f"{row['batch']} x {row['tokens']} x {row['tokens']}, hidden {row['hidden']}"
    worst = max(row["errors"]["regard.attend"])
    return f"`attend`, additive, {size}, {_direction(row['backward'])}, error {worst:.0e}"


def _memory(row: dict) -> str:
    what = f"memory of additive, 1 x {row['tokens']} x {row['tokens']}, hidden {row['hidden']}, forward + backward"
    textbook, ours = row["textbook_bytes_at_least"], row["peak_bytes"]
    return f"| {what} | textbook (computed) | {_size(textbook)} | {_size(ours)} | {textbook / ours:.0f}x |"


def _direction(backward: bool) -> str:
    return "forward + backward" if backward else "forward"


def _machine(suite: dict) -> str:
    facts = suite["machine"]
    return f"{facts['processor']}, {facts['threads']} threads, torch {facts['torch']}, Python {facts['python']}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _size(size: float) -> str:
    return f"{size / 2**20:.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


if __name__ == "__main__":
    write()
