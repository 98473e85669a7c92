"""The README's tables of translation, rendered from the result files and from nothing else.

`python -m benchmarks.translation.report` writes them between their markers.
"""

import json
from pathlib import Path

from benchmarks import pages

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PART = "translation"
LANGUAGES = {"de": "German", "fr": "French"}


def write() -> None:
    """Put the rendered tables between the markers of README.md."""
    pages.renew(ROOT / "README.md", {PART: render()})


def render() -> str:
    """Quality, then quality by length, then speed."""
    kept = json.loads((RESULTS / "multi30k.json").read_text())
    return "\n".join([*_quality(kept), "", *_by_joining(kept), "", *_speed(), ""])


def _quality(kept: dict) -> list[str]:
    runs = kept["runs"]
    signature = next(metric for metric in runs[0]["test"]["metrics"] if metric["name"] == "BLEU")["signature"]
    lines = [
        f"BLEU on Multi30k's test set of 2016, beam 5, one model, `{signature}`, with the interval of 1,000 resamples:",
        "",
        "| English to | attention | seeds | mean | the seed chosen on validation | chrF | perplexity | training |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for summary in sorted(kept["summaries"], key=lambda entry: (entry["language"], entry["attention"] == "none")):
        group = _runs_of(summary, runs)
        chosen = next(run for run in group if run["seed"] == summary["chosen_seed"])
        bleu, chrf = (
            next(metric for metric in chosen["test"]["metrics"] if metric["name"] == name) for name in ("BLEU", "chrF2")
        )
        beside = sum(run["language"] == summary["language"] for run in runs)
        each = ", ".join(f"{value:.1f}" for value in summary["test"])
        cells = (
            LANGUAGES[summary["language"]],
            summary["attention"],
            each,
            f"{summary['mean']:.1f}",
            f"{bleu['score']:.1f} ± {bleu['half_width']:.1f}",
            f"{chrf['score']:.1f}",
            f"{chosen['test']['perplexity']:.2f}",
            f"{max(summary['seconds']) / 60:.0f} min, {beside} trainings side by side",
        )
        lines.append(f"| {' | '.join(cells)} |")
    machine = runs[0]["machine"]
    lines += ["", f"Trained on one {machine['processor']}, torch {machine['torch']}, by `recipes/multi30k.toml`."]
    return lines


def _by_joining(kept: dict) -> list[str]:
    """Sentences in a row as one: the longer the source, the more a fixed vector loses."""
    counts = [entry["joined"] for entry in kept["runs"][0]["joined"]]
    head = " | ".join("1 sentence" if count == 1 else f"{count} joined" for count in counts)
    lines = ["| BLEU, mean of the seeds | " + head + " |", "|---" * (len(counts) + 1) + "|"]
    for summary in sorted(kept["summaries"], key=lambda entry: (entry["language"], entry["attention"] == "none")):
        group = _runs_of(summary, kept["runs"])
        means = [sum(_bleu(run["joined"][place]) for run in group) / len(group) for place in range(len(counts))]
        what = "without attention" if summary["attention"] == "none" else f"{summary['attention']} attention"
        cells = " | ".join(f"{mean:.1f}" for mean in means)
        lines.append(f"| English to {LANGUAGES[summary['language']]}, {what} | {cells} |")
    return lines


def _runs_of(summary: dict, runs: list[dict]) -> list[dict]:
    return [run for run in runs if all(run[key] == summary[key] for key in ("language", "attention"))]


def _bleu(evaluation: dict) -> float:
    return next(metric["score"] for metric in evaluation["metrics"] if metric["name"] == "BLEU")


def _speed() -> list[str]:
    lines = ["| speed | on | against | the other | regard | ratio |", "|---|---|---|---|---|---|"]
    for path in sorted(RESULTS.glob("translation-*.json")):
        kept = json.loads(path.read_text())
        where = f"{kept['machine']['processor']}, {kept['machine']['threads']} threads"
        for row in kept.get("rows", []):
            if "seconds" in row:
                lines.append(f"| {row['what']} | {where} | | | {row['seconds']:.2f} s | |")
                continue
            pair = f"{row['other']:,.0f} | {row['regard']:,.0f} {row['unit']} | {row['ratio']:.1f}x"
            lines.append(f"| {row['what']} | {where} | {row['against']} | {pair} |")
    return lines


if __name__ == "__main__":
    write()
