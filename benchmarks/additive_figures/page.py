"""The generated parts of docs/additive.md: captions and tables, each between its markers."""

import re
from collections.abc import Callable
from pathlib import Path

from benchmarks import pages
from benchmarks.additive_figures.curves import setting
from benchmarks.additive_figures.files import kept
from benchmarks.measure import LARGEST_DRIFT

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "additive.md"
COLUMNS = ("size", "direction", "tolerance", "against", "theirs, ms", "ours, ms", "ratio", "error", "memory")
UNBROKEN = "\u2011"  # a hyphen at which no line ends
# The kernels of a lifted call that are for activations outside of the lift's range.
BEYOND_RANGE = {
    **dict.fromkeys(("patch_scores", "token_gradients"), "looks for blocks with many outliers"),
    **dict.fromkeys(("correct_outlier_scores", "list_outliers", "correct_outlier_gradients"), "corrects outliers"),
}


def write() -> None:
    """Put every part between its markers."""
    pages.renew(PAGE, {name: render() for name, render in PARTS.items()})


def figure(name: str, alt: str, caption: str) -> str:
    """A figure of the page; it is turned light on dark where the page is."""
    lines = [f"```{{figure}} figures/{name}.svg", f":alt: {alt}", ":width: 100%", ":figclass: drawn", "", caption]
    return "\n".join([*lines, "```", ""])


def time_figure() -> str:
    """Time against length."""
    caption = f"Forward and backward together on {setting()}; medians. {_ends()}"
    return figure("additive-time", "Time against length of the textbook, exact and lifted forms", caption)


def memory_figure() -> str:
    """Memory against length."""
    caption = f"Peak memory beyond the inputs, forward and backward together, on {setting()}. {_ends()}"
    return figure("additive-memory", "Memory against length of the textbook, exact and lifted forms", caption)


def _ends() -> str:
    curve = kept("additive-cuda")["curve"]
    last = max(row["tokens"] for row in curve if "textbook" in row["seconds"])
    return (
        f"The textbook form in plain operations was run up to {last:,} tokens, the compiled forms at the table's sizes."
    )


def errors_figure() -> str:
    """Errors of the lift against its rank."""
    suite = kept("lift-errors")
    caption = (
        f"The lift's error against its rank. Lines: the error bound. Dots: the largest error of {suite['pairs']:,} "
        "pairs, with tables and features rounded as in the kernels. To the right of the bend the rounding of float16 "
        "dominates, and a larger rank does not help."
    )
    return figure("additive-lift-errors", "Error of value and slope against rank, bound and observed", caption)


def why_block() -> str:
    """What `regard.why` said of the longest lifted call that was compared, forward and backward."""
    rows = [row for row in kept("additive-cuda")["rows"] if row["tolerance"] and row["backward"]]
    row = max(rows, key=lambda row: row["tokens"])
    said = row["bound"].replace("; ", ";\n    ").replace(": ", ":\n    ")
    call = f"{_size_of(row['batch'], row['tokens'])}, tolerance={row['tolerance']:g}, gradients wanted"
    return f"```text\n# {call}\nbackend: {row['backend']}\n  error of a score: {said}\n```\n"


def speed_table(name: str) -> str:
    """One suite of `benchmarks.additive`."""
    suite = kept(name)
    machine = suite["machine"]
    sizes = {(row["hidden"], row["value_dim"]) for row in suite["rows"]}
    ((hidden, value_dim),) = sizes
    threads = f", {machine['threads']} threads" if suite["device"] == "cpu" else ""
    where = f"{machine['processor']}{threads}, torch {machine['torch']}"
    lines = [
        f"On {where}; batch x tokens², as many queries as keys; hidden {hidden}, values of {value_dim}, float32:",
        "",
        _line(*COLUMNS),
        _line(*["---"] * len(COLUMNS)),
        *(_compared(row) for row in suite["rows"]),
        *(_alone(row, hidden) for row in suite.get("longest", ())),
    ]
    return "\n".join(lines) + "\n"


def _compared(row: dict) -> str:
    """A line for each way in which the library was called."""
    peer, theirs = next(iter(row["seconds"].items()))
    noisy = " (noisy)" if row["drift"] > LARGEST_DRIFT else ""
    memory = row.get("peak_bytes") or {}
    against = f"{peer}, each in a CUDA graph" if row.get("captured") else peer
    return "\n".join(
        _line(
            _size_of(row["batch"], row["tokens"]),
            "forward + backward" if row["backward"] else "forward",
            _tolerance(row),
            f"{against}; `attend` compiled" if library.endswith("torch.compile") else against,
            _milliseconds(theirs["median"]),
            _milliseconds(row["seconds"][library]["median"]),
            f"{row['ratio'][library]:.1f}x{noisy}",
            f"{max(errors):.1e}".replace("-", UNBROKEN),
            f"{_bytes(memory[library])} / {_bytes(memory[peer])}" if memory else "",
        )
        for library, errors in row["errors"].items()
    )


def _alone(row: dict, hidden: int) -> str:
    """A length at which no textbook form runs: what its largest tensor would take."""
    textbook = f"none: textbook's tensor is {_bytes(4 * row['tokens'] ** 2 * hidden)}"
    (ours,) = row["seconds"].values()
    cells = (_tolerance(row), textbook, "", _milliseconds(ours["median"]), "", "", _bytes(row["peak_bytes"]))
    return _line(_size_of(1, row["tokens"]), "forward + backward", *cells)


def kernels_table() -> str:
    """Each kernel of four calls beside its floor; torch's own small ones are one row."""
    suite = kept("additive-kernels-cuda")
    size, ceilings = suite["size"], suite["ceilings"]
    lines = [
        f"On {suite['machine']['processor']}, {_size_of(size['batch'], size['tokens'])}, hidden {size['hidden']}, "
        f"values of {size['value_dim']}. Measured ceilings: {ceilings['matrix_flops'] / 1e12:.0f} Tflop/s in a large "
        f"float16 product, {ceilings['copied_bytes'] / 1e12:.2f} TB/s in a copy; "
        f"{ceilings['multiprocessors']} multiprocessors at {ceilings['clock_after_products'] / 1e9:.2f} GHz.",
        "",
        "| kernel | launches | ms | floor, ms | floor / time | limited by |",
        "|---|---|---|---|---|---|",
    ]
    for call in dict.fromkeys(row["call"] for row in suite["rows"]):
        rows = [row for row in suite["rows"] if row["call"] == call]
        known = [row for row in rows if re.fullmatch(r"\w+( product)?", row["kernel"])]
        rest = [row for row in rows if row not in known]
        lines += [_line(f"**{call}**", "", f"**{sum(row['ms'] for row in rows):.3f}**", "", "", "")]
        lines += [_kernel(row) for row in known]
        if rest:
            launches, time = sum(row["launches"] for row in rest), sum(row["ms"] for row in rest)
            lines.append(_line("small ones of torch", str(launches), f"{time:.3f}", "", "", ""))
    return "\n".join(lines) + "\n"


def limits() -> str:
    """How many times faster than a textbook form compiled for its length a pass with nothing but its floor would be."""
    floors = kept("additive-kernels-cuda")["rows"]
    compared = [row for row in kept("additive-cuda")["rows"] if row["backward"] and "compile" in _peer(row)]
    longest = max(row["tokens"] for row in compared)
    said = []
    for tolerance, call, kernels, what in (
        (True, "lifted, forward and backward", ("matrix product",), "matrix products"),
        (False, "exact, forward and backward", ("score_tiles", "token_gradients"), "float32 instructions"),
    ):
        rows = [one for one in compared if one["tokens"] == longest and bool(one["tolerance"]) == tolerance]
        theirs = [1e3 * row["seconds"][_peer(row)]["median"] for row in rows]
        floor = sum(one["floor_ms"] for one in floors if one["call"] == call and one["kernel"] in kernels)
        ratios, times = (" and ".join(f"{x:.0f}" for x in each) for each in ([t / floor for t in theirs], theirs))
        said.append(
            f"{call.partition(',')[0]}, {ratios} times ({times} ms over the floor of its {what}, {floor:.1f} ms)"
        )
    return (
        f"This limits the ratios at {longest:,} tokens, forward and backward, against the textbook forms compiled for "
        f"that length, even if everything else took no time: {'; '.join(said)}.\n"
    )


def _peer(row: dict) -> str:
    """What a row compares with."""
    return next(iter(row["seconds"]))


def _kernel(row: dict) -> str:
    name = row["kernel"] if " " in row["kernel"] else f"`{row['kernel']}`"
    start = (name, str(row["launches"]), f"{row['ms']:.3f}")
    beyond = BEYOND_RANGE.get(row["kernel"], "") if row["call"].startswith("lifted") else ""
    if row["floor_ms"] is None or beyond:
        return _line(*start, "", "", beyond)
    return _line(*start, f"{row['floor_ms']:.3f}", f"{row['floor_ms'] / row['ms']:.0%}", row["bound_by"])


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _size_of(batch: int, tokens: int) -> str:
    return f"{batch} x {tokens}²"


def _tolerance(row: dict) -> str:
    return "none" if row.get("tolerance") is None else f"{row['tolerance']:g}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"


def _bytes(size: float) -> str:
    for unit, name in ((2**40, "TiB"), (2**30, "GiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / 2**20:.0f} MiB"


PARTS: dict[str, Callable[[], str]] = {
    "additive time": time_figure,
    "additive memory": memory_figure,
    "additive errors": errors_figure,
    "additive why": why_block,
    "additive speed on a GPU": lambda: speed_table("additive-cuda"),
    "additive speed at several lengths, on a GPU": lambda: speed_table("lengths-cuda"),
    "additive speed on a CPU": lambda: speed_table("additive"),
    "additive speed at several lengths, on a CPU": lambda: speed_table("lengths"),
    "additive kernels": kernels_table,
    "additive limits": limits,
}
