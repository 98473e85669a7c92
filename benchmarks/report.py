"""The tables of the README and of RESULTS.md, rendered from the result files alone: `python -m benchmarks.report`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks import pages
from benchmarks.measure import LARGEST_DRIFT

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
WHOLE = Path(__file__).parent / "RESULTS.md"
# What the tour shows without a copy of the benchmarks.
SHIPPED = ROOT / "src/regard/tour/results"
PART = "benchmarks"
# Some of the rows of a suite.
Choice = Callable[[list[dict]], list[dict]]


def write() -> None:
    """Put a few rows between the markers of README.md, all of them into RESULTS.md, and what the tour shows into it."""
    pages.renew(ROOT / "README.md", {PART: short()})
    WHOLE.write_text(page(), encoding="utf-8")
    for path in SHIPPED.glob("*.json"):
        shutil.copyfile(RESULTS / path.name, path)


def short() -> str:
    """A few rows for the reader in a hurry, machine by machine."""
    parts = []
    for machine, suites in _by_machine().items():
        rows = _table(suites, SHORT)
        if rows:
            parts += [f"Medians of interleaved passes on {machine}:\n", rows, ""]
    return "\n".join(parts)


def everything() -> str:
    """All rows, machine by machine, folded."""
    parts = []
    for machine, suites in sorted(_by_machine().items()):
        parts += [f"<details><summary>{machine}</summary>\n", _table(suites, {}), "\n</details>\n"]
    return "\n".join(parts)


def page() -> str:
    """RESULTS.md."""
    return f"""# All results

Written by `python -m benchmarks.report` from the files in [results](results), which `make bench` writes; `--cuda` after
`python -m benchmarks` times a GPU. Medians of interleaved passes; a ratio above 1x means that regard is faster.

{everything()}"""


def _by_machine() -> dict[str, list[dict]]:
    """The suites that have a table, under the machine that each was timed on."""
    suites = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    suites = [suite for suite in suites if suite.get("suite") in RENDERED]
    suites.sort(key=lambda suite: (suite["device"], list(RENDERED).index(suite["suite"])))
    found: dict[str, list[dict]] = {}
    for suite in suites:
        found.setdefault(_machine(suite), []).append(suite)
    return found


def _table(suites: list[dict], chosen: dict[str, Choice]) -> str:
    """The rows that each suite's choice returns, or all rows of a suite without one; empty if there is no row."""
    lines = []
    for suite in suites:
        name = suite["suite"]
        rows = chosen[name](suite["rows"]) if name in chosen else suite["rows"]
        lines += [RENDERED[name](row) for row in rows]
    head = ["| what | against | the other | regard | ratio |", "|---|---|---|---|---|"]
    return "\n".join([*head, *lines]) if lines else ""


def _dot(row: dict) -> str:
    size = " x ".join(str(n) for n in row["shape"])
    lengths = "".join(f" {length}" for length in dict.fromkeys(row.get("lengths", [])))
    mask = "" if row["mask"] == "none" else f", mask {row['mask']}{lengths}"
    mask += ", each in a CUDA graph" if row.get("captured") else ""
    return _compared(f"`attend`, scaled dot, {size}{mask}, {_direction(row['backward'])}", row)


def _multihead(row: dict) -> str:
    kind = "training" if row["training"] else "evaluation"
    size = f"{row['batch']} x {row['tokens']} x {row['dim']}, {row['heads']} heads"
    theirs, ours = row["errors"].values()
    dtype = "" if row["dtype"] == "float32" else f", {row['dtype']}"
    return _compared(f"`MultiHeadAttention`, {size}{dtype}, {kind}, error {ours:.1e}, theirs {theirs:.1e}", row)


def _additive(row: dict) -> str:
    size = f"{row['batch']} x {row['tokens']} x {row['tokens']}, hidden {row['hidden']}"
    how = "" if row.get("tolerance") is None else f", tolerance {row['tolerance']:g}"
    how += ", each in a CUDA graph" if row.get("captured") else ""
    lines = []
    for library, errors in row["errors"].items():
        name = library.replace("regard.attend", "`attend`")
        what = f"{name}, additive, {size}{how}, {_direction(row['backward'])}, error {max(errors):.0e}"
        lines.append(_compared(what, row, library))
    return "\n".join(lines)


def _compared(what: str, row: dict, library: str | None = None) -> str:
    """One line: the first that was timed against the library, which is the last unless it is named."""
    peer, *_, last = row["seconds"]
    library = library or last
    theirs, ours = row["seconds"][peer], row["seconds"][library]
    noisy = " (noisy)" if row["drift"] > LARGEST_DRIFT else ""
    if "ratio" in row:
        ratio = f"{row['ratio'][library]:.2f}x"
    else:  # kept before passes were compared with their neighbours
        ratio = f"{theirs['median'] / ours['median']:.2f}x (of medians)"
    return f"| {what} | `{peer}` | {_time(theirs['median'])} | {_time(ours['median'])} | {ratio}{noisy} |"


def _memory(row: dict) -> str:
    what = f"memory of additive, 1 x {row['tokens']} x {row['tokens']}, hidden {row['hidden']}, forward + backward"
    textbook, ours = row["textbook_bytes_at_least"], row["peak_bytes"]
    return f"| {what} | textbook (computed) | {_size(textbook)} | {_size(ours)} | {textbook / ours:.0f}x |"


def _regression(row: dict) -> str:
    points = f"{row['points']:,}"
    match row["kind"]:
        case "pooled":
            what = (
                f"`NadarayaWatson`, {row['kernel']}, {points} points and queries, width {row['share']:g} of the range"
            )
            told = f"{what}, error {row['error']:.0e}, {_size(row['peak_bytes'])}"
        case "extremes":
            what = (
                f"`NadarayaWatson`, {row['kernel']}, {points} points moved by {row['offset']:g}, one value of "
                f"{row['huge']:g}, a gap, width {row['share']:g} of the range, {row['queries']} queries up to "
                f"{row['farthest']:g} widths outside"
            )
            return f"| {what} | long double | | error {row['error']:.0e} | |"
        case "fitted":
            told = f"`NadarayaWatson`, leave-one-out fit, {row['kernel']}, {points} points, {_size(row['peak_bytes'])}"
        case "searched":
            (peer, theirs), (_, ours) = row["seconds"].items()
            ratio = theirs["median"] / ours["median"]
            what = f"`NadarayaWatson`, leave-one-out fit, gaussian, {points} points"
            return f"| {what} | {peer} | {_time(theirs['median'])} | {_time(ours['median'])} | {ratio:.0f}x |"
        case _:
            worst = row["errors"]["regard.attend"]
            return _compared(f"`attend`, Gaussian in three dimensions, {points} x {points}, error {worst:.0e}", row)
    return f"| {told} | | | {_time(row['seconds']['median'])} | |"


def _distance(row: dict) -> str:
    seconds, direction = row["seconds"], _direction(row["backward"])
    ours = seconds.get("regard.attend") or seconds["regard.inspect"]
    if row["kind"] == "pooled":
        rate = f"{row['pairs_a_second'] / 1e12:.2f}e12 pairs a second"
        what = f"`inspect`, Gaussian in three dimensions, {row['points']:,} x {row['points']:,}, {direction}, {rate}"
        return f"| {what} | | | {_time(ours['median'])} | |"
    peers = {name: times for name, times in seconds.items() if name != "regard.attend"}
    best = min(peers, key=lambda name: peers[name]["median"])
    what = f"`attend`, Gaussian, {row['batch']} x {row['tokens']} x {row['tokens']}, dim {row['dim']}, {direction}"
    theirs = f"{_time(peers[best]['median'])} | {_time(ours['median'])}"
    return f"| {what} | best of {', '.join(peers)}: {best} | {theirs} | {row['times_best_peer']:.2f}x |"


def _studio(row: dict) -> str:
    what = f"studio, {row['kernel']}, {row['points']:,} points: {row['what']}, {row['drags']} drags"
    return f"| {what} | | | {_time(row['median'])} | |"


def _imports(row: dict) -> str:
    return f"| {row['what']}, after `import torch` | | | {_time(row['median'])} | |"


def _direction(backward: bool) -> str:
    return "forward + backward" if backward else "forward"


def _machine(suite: dict) -> str:
    facts = suite["machine"]
    return f"{facts['processor']}, {facts['threads']} threads, torch {facts['torch']}, Python {facts['python']}"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _size(size: float) -> str:
    return f"{size / 2**20:.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


def _where(condition: Callable[[dict], bool]) -> Choice:
    return lambda rows: [row for row in rows if condition(row)]


def _against_faster_form(rows: list[dict]) -> list[dict]:
    """Of the comparisons with the textbook's two forms, both eager or both compiled, that with the faster form."""
    rows = [row for row in rows if row["tokens"] in (512, 4096) and not row.get("captured")]
    fastest: dict[tuple, dict] = {}
    for row in rows:
        known = fastest.setdefault(_comparison(row), row)
        if _peer_time(row) < _peer_time(known):
            fastest[_comparison(row)] = row
    return list(fastest.values())


def _comparison(row: dict) -> tuple:
    """What rows against two forms of one peer have in common."""
    size = tuple(row[name] for name in ("batch", "tokens", "hidden", "backward"))
    return *size, row.get("tolerance"), "torch.compile" in next(iter(row["seconds"]))


def _peer_time(row: dict) -> float:
    return next(iter(row["seconds"].values()))["median"]


# One size of each suite, for the reader in a hurry.
SHORT: dict[str, Choice] = {
    "dot": _where(lambda row: row["shape"][2] in (8, 2048) and row["mask"] == "none" and not row["captured"]),
    "multihead": _where(lambda row: row["tokens"] == 512),
    "additive": _against_faster_form,
    "lengths": _where(lambda row: False),
    "memory": _where(lambda row: row["tokens"] == 8192),
    "regression": _where(
        lambda row: (
            row.get("kernel") not in ("boxcar", "triangular", "biweight", "tricube", "cosine_kernel")
            and row.get("share", 1e-3) == 1e-3
        )
    ),
    "distance": _where(lambda row: row["kind"] != "pooled" or row["points"] == 1_000_000),
}
RENDERED = {
    "dot": _dot,
    "multihead": _multihead,
    "additive": _additive,
    "lengths": _additive,
    "memory": _memory,
    "regression": _regression,
    "distance": _distance,
    "imports": _imports,
    "studio": _studio,
}


if __name__ == "__main__":
    write()
