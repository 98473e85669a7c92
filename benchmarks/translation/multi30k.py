"""Multi30k, English to German or French: train by the recipe, evaluate once, keep the results.

    python -m benchmarks.translation.multi30k run --data DIR --language de --seed 1 --device cuda --work WORK
    python -m benchmarks.translation.multi30k collect --work WORK

    python -m benchmarks.translation.multi30k search --data DIR --model WORK/de-additive-1 --device cuda --out FILE

`run` trains one model into WORK/<name> and writes WORK/<name>.json; the runs of a language go side by side. The test
set is looked at once, by the model that validation chose. `collect` writes benchmarks/results/multi30k.json out of all
of them; `search` times beam 5 on the whole test set.
"""

import argparse
import json
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measure import machine
from regard.translation import Translator
from regard.translation.dataset import Corpus, Pair, read_parallel
from regard.translation.evaluation import evaluate
from regard.translation.monitoring import Event
from regard.translation.recipe import Recipe
from regard.translation.training import train

RECIPE = Path(__file__).parents[2] / "recipes" / "multi30k.toml"
RESULT = Path(__file__).parents[1] / "results" / "multi30k.json"
TEST = "test_2016_flickr"
JOINED = (1, 2, 3, 4)
PASSES = 5


def read(data: Path, part: str, language: str) -> list[Pair]:
    return list(read_parallel(data / f"{part}.en.gz", data / f"{part}.{language}.gz"))


def joined(pairs: list[Pair], count: int) -> list[Pair]:
    """So many sentences in a row as one, which is longer than anything the model was trained on."""
    groups = [pairs[start : start + count] for start in range(0, len(pairs) - count + 1, count)]
    return [Pair(*(" ".join(side) for side in zip(*group, strict=True))) for group in groups]


def run(options: argparse.Namespace) -> None:
    name = f"{options.language}-{options.attention}-{options.seed}"
    corpus = Corpus("multi30k", *(read(options.data, part, options.language) for part in ("train", "val")))
    recipe = Recipe.read(RECIPE).with_flags({"seed": options.seed, "attention": options.attention})
    if options.epochs:
        recipe = recipe.with_flags({"epochs": options.epochs, "validate_from": 1})
    begun = time.perf_counter()

    def show(event: Event) -> None:
        if not hasattr(event, "speed"):
            print(name, f"{time.perf_counter() - begun:.0f} s", str(event)[:260], flush=True)

    ended = train(recipe, corpus, options.work / name, device=options.device, on_event=show)
    seconds = time.perf_counter() - begun
    translator = Translator.load(options.work / name, device=options.device)
    settings = {"tokenize": "none", "batch_size": 250}
    test = read(options.data, TEST, options.language)
    valid = evaluate({name: translator}, corpus.valid, **settings).evaluations[0]
    judged = evaluate({name: translator}, test, **settings).evaluations[0]
    longer = [
        evaluate({name: translator}, joined(test, count), **settings).evaluations[0].to_dict() | {"joined": count}
        for count in JOINED
    ]
    kept = {
        "name": name,
        "language": options.language,
        "attention": options.attention,
        "seed": options.seed,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(options.device),
        "recipe": recipe.to_dict(),
        "seconds": seconds,
        "epochs": ended.epochs,
        "best_epoch": ended.best_epoch,
        "length_penalty": ended.length_penalty,
        "validation": valid.to_dict(),
        "test": judged.to_dict(),
        "joined": longer,
        "history": [
            {"epoch": e.epoch, "loss": e.loss, "valid_loss": e.valid_loss, "bleu": e.bleu, "seconds": e.seconds}
            for e in ended.history
        ],
    }
    (options.work / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    print(f"RESULT {name} valid {score(valid.to_dict()):.2f} test {score(judged.to_dict()):.2f} in {seconds:.0f} s")


def score(evaluation: dict) -> float:
    return next(metric["score"] for metric in evaluation["metrics"] if metric["name"] == "BLEU")


def collect(options: argparse.Namespace) -> None:
    runs = [json.loads(path.read_text()) for path in sorted(options.work.glob("*.json"))]
    summaries = []
    for language, attention in sorted({(run["language"], run["attention"]) for run in runs}):
        group = [run for run in runs if (run["language"], run["attention"]) == (language, attention)]
        chosen = max(group, key=lambda run: score(run["validation"]))
        summaries.append(
            {
                "language": language,
                "attention": attention,
                "seeds": [run["seed"] for run in group],
                "test": [score(run["test"]) for run in group],
                "mean": statistics.mean(score(run["test"]) for run in group),
                "chosen_seed": chosen["seed"],
                "chosen_test": score(chosen["test"]),
                "seconds": [run["seconds"] for run in group],
            }
        )
    RESULT.write_text(json.dumps({"summaries": summaries, "runs": runs}, indent=1) + "\n")
    for summary in summaries:
        print(summary)


def time_search(options: argparse.Namespace) -> None:
    """Beam-5 translation of the test set, alone on the machine; the first pass is dropped."""
    translator = Translator.load(options.model, device=options.device)
    sources = [pair.source for pair in read(options.data, TEST, options.language)]
    seconds = []
    for _ in range(PASSES + 1):
        begun = time.perf_counter()
        said = translator.translate(sources, beams=5, batch_size=options.batch_size)
        seconds.append(time.perf_counter() - begun)
    kept = {
        "machine": machine(options.device),
        "sentences": len(sources),
        "tokens": sum(one.length for one in said),
        "batch_size": options.batch_size,
        "seconds": seconds[1:],
        "rows": [
            {
                "what": f"beam-5 translation of {len(sources):,} sentences",
                "against": "",
                "seconds": statistics.median(seconds[1:]),
            }
        ],
    }
    options.out.write_text(json.dumps(kept, indent=1) + "\n")
    print(kept["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("run")
    one.add_argument("--data", type=Path, required=True)
    one.add_argument("--language", choices=("de", "fr"), required=True)
    one.add_argument("--attention", default="additive")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--epochs", type=int)
    one.add_argument("--device", default="cuda")
    one.add_argument("--work", type=Path, required=True)
    one.set_defaults(do=run)
    every = verbs.add_parser("collect")
    every.add_argument("--work", type=Path, required=True)
    every.set_defaults(do=collect)
    search = verbs.add_parser("search")
    search.add_argument("--data", type=Path, required=True)
    search.add_argument("--model", type=Path, required=True)
    search.add_argument("--language", default="de")
    search.add_argument("--batch-size", type=int, default=250)
    search.add_argument("--device", default="cuda")
    search.add_argument("--out", type=Path, required=True)
    search.set_defaults(do=time_search)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
