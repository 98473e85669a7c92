"""The figures of the page on promises under stress, rendered from the report that is kept, and from nothing else.

`python -m tests.stress.page` writes them between the markers of docs/stress.md.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks import pages

ROOT = Path(__file__).parents[2]
REPORT, PAGE = ROOT / "benchmarks/results/stress.json", ROOT / "docs/stress.md"

WORDS = {
    "properties": "property tests of operator, masks, merging, kernels, bad input and files",
    "kills": "kill -9 of a training, gone on with to the same bits",
    "readers": "damaged bytes to every reader: pairs, gzip, TOML, CSV, model folder, checkpoint, requests",
    "studio": "the studio under requests at once and hostile ones",
    "memory": "memory that does not grow",
    "full disk": "a disk that is full while a training writes",
    "threads and processes": "attention in eight threads, after forks and spawns, bit for bit",
    "two trainings": "two processes that train into one folder",
}


def write() -> None:
    """Put the table between the markers."""
    pages.renew(PAGE, {"stress": render(json.loads(REPORT.read_text(encoding="utf-8")))})


def render(report: dict[str, Any]) -> str:
    """One row for each stress: what was promised, what was counted, how long it took, what was lost."""
    facts = report["machine"]
    kind = "" if report["whole"] else " This was not a whole run."
    head = (
        f"{report['when']}, regard {report['regard']}, torch {facts['torch']}, Python {facts['python']}, "
        f"{facts['processor']}, {report['jobs']} processes, seed {report['seed']}: "
        f"{report['seconds'] / 60:.0f} minutes, losses: {report['losses']}.{kind}"
    )
    lines = ["| stress | promised | done | seconds | losses |", "|---|---|---|---|---|"]
    for name, one in report["stresses"].items():
        promised, done = _counts(one["promised"]), _counts(one["counts"])
        lines.append(f"| {WORDS[name]} | {promised} | {done} | {one['seconds']:.0f} | {len(one['lost'])} |")
    return "\n".join([head, "", *lines, "", *_details(report["stresses"]), ""])


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _details(stresses: dict[str, dict[str, Any]]) -> list[str]:
    """What a count alone does not say."""
    told = []
    if "areas" in stresses.get("properties", {}):
        told.append(f"- Examples by area: {_counts(stresses['properties']['areas'])}.")
    if "where" in stresses.get("kills", {}):
        where = dict(stresses["kills"]["where"])
        early = where.pop("start", 0)
        more = f"; {early:,} more came before there was anything to lose, and do not count" if early else ""
        told.append(f"- Kills landed in: {_counts(where)}{more}.")
    if "grown" in stresses.get("memory", {}):
        grown = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in stresses["memory"]["grown"].items())
        told.append(f"- Growth after the first fifth of the calls: {grown}.")
    if "ways" in stresses.get("full disk", {}):
        told.append(f"- Disks were full by: {_counts(stresses['full disk']['ways'])}.")
    return told


if __name__ == "__main__":
    write()
