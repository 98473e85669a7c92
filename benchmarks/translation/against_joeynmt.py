"""Training and beam search on a CPU beside JoeyNMT 2.3.0, turn by turn: the README's rows of translation.

    python -m benchmarks.translation.against_joeynmt --data DIR --peer-python PYTHON

PYTHON has what `peer_joeynmt` asks for. Both models have the same sizes (embedding 256, hidden 512, vocabulary 6,000).
Training: each system batches in its own way, with about as many real target tokens a step; a token is a real one, END
counted. Search: both are made to write TOKENS tokens for every sentence, about as many as the references have, so that
the work does not depend on what the weights have learnt. JoeyNMT's decoder attends with its new state, which is not
eq. 13; ours is eq. 13.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measure import machine
from benchmarks.translation.multi30k import TEST, read
from regard.translation import Translator
from regard.translation.batching import make_batch
from regard.translation.dataset import Corpus
from regard.translation.model import Architecture
from regard.translation.recipe import Recipe
from regard.translation.training import Trainer

RESULT = Path(__file__).parents[1] / "results" / "translation-joeynmt.json"
PEER = Path(__file__).with_name("peer_joeynmt.py")
BATCH_TOKENS = 1152  # padded; about the 1,037 real tokens of the peer's batches
BATCH_SIZES = (64, 128)
TOKENS = 16  # of a translation
WARM_UP = 3


class Ours:
    """Our training and our search, each ready for another turn."""

    def __init__(self, options: argparse.Namespace) -> None:
        pairs = read(options.data, "train", "de")
        recipe = Recipe(Architecture(joint=True, tied=True)).with_flags({"batch_tokens": BATCH_TOKENS})
        self.trainer = Trainer(recipe, Corpus("multi30k", pairs, pairs[:1]))
        self.epoch = self.trainer.batches.epoch(0)
        self.place = 0
        self.translator = Translator([self.trainer.snapshot()])
        self.sources = [pair.source for pair in read(options.data, TEST, "de")[: options.sentences]]

    def train(self, seconds: float) -> tuple[float, float]:
        """Real target tokens a second, the median over steps; and real tokens a step."""
        rates, sizes, end = [], [], time.perf_counter() + seconds
        while time.perf_counter() < end or len(rates) <= WARM_UP:
            planned = self.epoch.plans[self.place]
            self.place += 1
            begun = time.perf_counter()
            self.trainer.update(make_batch(planned, self.epoch.sources, self.epoch.targets))
            rates.append(planned.tokens / (time.perf_counter() - begun))
            sizes.append(planned.tokens)
        return statistics.median(rates[WARM_UP:]), statistics.mean(sizes)

    def search(self, batch_size: int) -> tuple[float, float]:
        """Sentences and tokens a second of beam 5, from text to text."""
        lengths = {"shortest": TOKENS + 1, "longest": TOKENS}  # END is refused to the last
        begun = time.perf_counter()
        said = self.translator.translate(self.sources, beams=5, batch_size=batch_size, **lengths)
        seconds = time.perf_counter() - begun
        assert {len(one.target.ids) for one in said} == {TOKENS}
        return len(said) / seconds, TOKENS * len(said) / seconds


def peer(options: argparse.Namespace) -> dict:
    """One run of the peer, in its own environment."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "peer.json"
        flags = ["--data", options.data, "--out", out, "--tokens", TOKENS]
        flags += ["--train-seconds", options.seconds, "--sentences", options.sentences, "--passes", 2]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([options.peer_python, PEER, *map(str, flags)], check=True, **quiet)
        return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peer-python", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="of training in a turn")
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    ours, theirs, trained, found = Ours(options), [], [], {size: [] for size in BATCH_SIZES}
    for size in BATCH_SIZES:
        ours.search(size)
    for turn in range(options.turns):
        theirs.append(peer(options))
        trained.append(ours.train(options.seconds))
        for size in BATCH_SIZES:
            found[size].append(ours.search(size))
        print(f"turn {turn + 1}: {theirs[-1]['training']} {trained[-1]} {found}", flush=True)
    RESULT.write_text(json.dumps(summary(options, theirs, trained, found), indent=1) + "\n")


def summary(options: argparse.Namespace, theirs: list[dict], trained: list[tuple], found: dict[int, list]) -> dict:
    """The rows, from medians over the turns, each system at its best way of batching."""
    by_batching = {
        row["batching"]: statistics.median(_of(run["training"], "batching", row["batching"]) for run in theirs)
        for row in theirs[0]["training"]
    }
    our_rate = statistics.median(rate for rate, _ in trained)
    their_search = {
        row["batch"]: statistics.median(_of(run["search"]["batches"], "batch", row["batch"]) for run in theirs)
        for row in theirs[0]["search"]["batches"]
    }
    our_search = {size: statistics.median(tokens for _, tokens in rates) for size, rates in found.items()}
    against = f"{theirs[0]['peer']}, hidden 512"
    searched = f"beam-5 translation, {TOKENS} tokens a sentence"
    rows = [
        _row("training, embedding 256, hidden 512", against, max(by_batching.values()), our_rate),
        _row(searched, against, max(their_search.values()), max(our_search.values())),
    ]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine("cpu"),
        "load": os.getloadavg()[0],
        "turns": options.turns,
        "rows": rows,
        "peer": theirs,
        "regard": {"training": trained, "search": found},
    }


def _of(rows: list[dict], key: str, value: object) -> float:
    """The peer's median rate in the row with that value."""
    return next(row["tokens_per_second"]["median"] for row in rows if row[key] == value)


def _row(what: str, against: str, other: float, regard: float) -> dict:
    row = {"what": what, "against": against, "other": other, "regard": regard, "unit": "tokens/s"}
    return row | {"ratio": regard / other}


if __name__ == "__main__":
    main()
