"""Measure JoeyNMT 2.3.0 on this CPU: real target tokens per second of training, sentences per second of beam search.

Run by the python of an environment that has `torch==2.13.0 joeynmt==2.3.0 importlib_metadata sentencepiece==0.2.0`
(later sentencepieces lack `SetVocabulary`, which JoeyNMT calls), not by the library's own:

    python benchmarks/translation/peer_joeynmt.py --data multi30k --out joeynmt.json

What is measured is the package's own model, loss, batching, optimiser, schedule and search; this file calls them and
reads the clock. Sizes (peer_joeynmt.yaml): embeddings of 256, a bidirectional GRU of 512 a direction, a GRU decoder of
512, a joint BPE of 6,000.

The model is not eq. 13: JoeyNMT's decoder runs its GRU first, on the previous word and the previous attentional vector
(Luong's input feeding), and attends with the NEW state, while Bahdanau's query is the previous one. Its first state
comes from the encoder's last states, not their mean, and its read-out does not see the previous word. The
work a step is about the same; the mathematics is not.

Training: one step of each batching in turn (64 sentences; 2,048 tokens with their padding, about as many), the first
WARM_UP steps of each dropped. A token is a real one, END counted, padding not. Rates are given for the step alone and
with the package's loading of the batch, which cuts the sentences into subwords anew, twice each.

Search: every translation is made to have `--tokens` tokens, END refused before, so that the work does not depend on
what the weights have learnt: as many steps, all beams open. The timed call is the package's `predict`, from text to
text, without scores; the batch sizes take turns, pass after pass, and the first pass is dropped.
"""

import argparse
import functools
import gzip
import json
import logging
import os
import platform
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SETTINGS = Path(__file__).with_suffix(".yaml")
SUBWORDS = 6000
BATCHINGS = {"sentence": 64, "token": 2048}
SEARCH_BATCHES = (16, 64, 128)
WARM_UP, THREADS = 3, 2
SPECIAL = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3}


def main() -> None:
    """Measure and keep the result as JSON."""
    options = _options()
    import torch

    torch.set_num_threads(THREADS)
    logging.disable(logging.INFO)
    with TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def measure(options: argparse.Namespace, work: Path) -> dict:
    """Training first, then search with what it has learnt."""
    import torch
    from importlib_metadata import version

    load = os.getloadavg()[0]
    trainer, train, test = prepare(options, work)
    training = time_training(trainer, train, options.train_seconds)
    search = time_search(trainer, test, options.passes, options.tokens)
    return {
        "peer": f"joeynmt {version('joeynmt')}",
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load": {"before": load, "after": os.getloadavg()[0]},
        "sizes": {
            "embedding": trainer.model.trg_embed.embedding_dim,
            "hidden": trainer.model.decoder.hidden_size,
            "vocabulary": len(trainer.model.trg_vocab),
        },
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "training": training,
        "search": {"beam": trainer.dev_cfg.beam_size, "sentences": len(test), "batches": search},
    }


def prepare(options: argparse.Namespace, work: Path) -> tuple[Any, Any, Any]:
    """JoeyNMT's train manager with its model and optimiser, and its data sets of training and test sentences."""
    from joeynmt.config import parse_global_args
    from joeynmt.prediction import prepare as build
    from joeynmt.training import TrainManager

    for part, lines in (("train", None), ("val", None), ("test_2016_flickr", options.sentences)):
        for language in ("en", "de"):
            text = gzip.decompress((options.data / f"{part}.{language}.gz").read_bytes()).decode().splitlines()
            (work / f"{part}.{language}").write_text("\n".join(text[:lines]) + "\n")
    subwords = options.subwords or learn_subwords(work)
    args = parse_global_args(configuration(work, subwords, write_pieces(subwords, work)), mode="train")
    args.model_dir.mkdir()
    model, train, _, test = build(args, rank=0, mode="train")
    shared = {"rank": 0, "device": args.device, "autocast": args.autocast, "seed": args.seed}
    trainer = TrainManager(model=model, model_dir=args.model_dir, train_args=args.train, dev_args=args.test, **shared)
    return trainer, train, test


def learn_subwords(work: Path) -> Path:
    """A joint BPE of both sides of the training data."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        input=[str(work / "train.en"), str(work / "train.de")],
        model_prefix=str(work / "joint"),
        vocab_size=SUBWORDS,
        model_type="bpe",
        character_coverage=1.0,
        minloglevel=2,
        **SPECIAL,
    )
    return work / "joint.model"


def write_pieces(subwords: Path, work: Path) -> Path:
    """The pieces as JoeyNMT reads them, one a line; its own four symbols come before them."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(subwords))
    ids = (i for i in range(model.get_piece_size()) if not model.is_control(i) and not model.is_unknown(i))
    file = work / "joint.vocabulary"
    file.write_text("\n".join(model.id_to_piece(i) for i in ids) + "\n")
    return file


def configuration(work: Path, subwords: Path, pieces: Path) -> dict:
    """What a JoeyNMT user writes in YAML: the settings kept beside this file, and the paths."""
    import yaml

    side = {"level": "bpe", "tokenizer_type": "sentencepiece", "voc_file": str(pieces)}
    side["tokenizer_cfg"] = {"model_file": str(subwords), "pretokenizer": "none"}
    data = {
        "train": str(work / "train"),
        "dev": str(work / "val"),
        "test": str(work / "test_2016_flickr"),
        "dataset_type": "plain",
        "src": {"lang": "en", **side},
        "trg": {"lang": "de", **side},
        "special_symbols": dict(SPECIAL),
    }
    return {"model_dir": str(work / "model"), "data": data, **yaml.safe_load(SETTINGS.read_text())}


def batches(trainer: Any, train: Any, batching: str) -> Iterator[Any]:
    """JoeyNMT's own batches, epoch after epoch."""
    symbols = {"eos_index": trainer.model.eos_index, "pad_index": trainer.model.pad_index}
    loader = train.make_iter(BATCHINGS[batching], batching, seed=trainer.seed, shuffle=True, **symbols)
    while True:
        yield from loader


def step(trainer: Any, batch: Any) -> float:
    """One update in the order of JoeyNMT's training loop; the loss per token."""
    loss, _ = trainer._train_step(batch)
    trainer.clip_grad_fun(parameters=trainer.model.parameters())
    trainer.optimizer.step()
    trainer.scheduler.step(trainer.stats.steps)
    trainer.model.zero_grad()
    trainer.stats.steps += 1
    return loss


def time_training(trainer: Any, train: Any, seconds: float) -> list[dict]:
    """One row a batching: tokens per second, median and best over the steps, and over all their time together."""
    iterators = {batching: batches(trainer, train, batching) for batching in BATCHINGS}
    records: dict[str, list[tuple[int, int, int, float, float]]] = {batching: [] for batching in BATCHINGS}
    end = None
    while end is None or time.perf_counter() < end:
        for batching, iterator in iterators.items():
            begin = time.perf_counter()
            batch = next(iterator)
            loaded = time.perf_counter()
            step(trainer, batch)
            stepped = time.perf_counter()
            sizes = batch.ntokens, batch.trg.numel(), batch.nseqs
            records[batching].append((*sizes, stepped - loaded, loaded - begin))
        if len(records["token"]) == WARM_UP:
            end = time.perf_counter() + seconds
    return [_training_row(batching, rows[WARM_UP:]) for batching, rows in records.items()]


def _training_row(batching: str, rows: list[tuple[int, int, int, float, float]]) -> dict:
    tokens, padded, sentences, stepping, loading = zip(*rows, strict=True)
    rates = [n / s for n, s in zip(tokens, stepping, strict=True)]
    return {
        "batching": f"{BATCHINGS[batching]} {batching}s",
        "steps": len(rows),
        "sentences_per_step": statistics.mean(sentences),
        "tokens_per_step": statistics.mean(tokens),
        "padding": 1 - sum(tokens) / sum(padded),
        "tokens_per_second": {"median": statistics.median(rates), "best": max(rates)},
        "tokens_per_second_overall": sum(tokens) / sum(stepping),
        "tokens_per_second_with_loading": sum(tokens) / (sum(stepping) + sum(loading)),
        "load": os.getloadavg()[0],
    }


def time_search(trainer: Any, test: Any, passes: int, tokens: int) -> list[dict]:
    """One row a batch size: sentences and tokens (END counted) per second, and what was put out."""
    times: dict[int, list[float]] = {batch: [] for batch in SEARCH_BATCHES}
    outputs: dict[int, list[list[str]]] = {}
    for _ in range(passes + 1):
        for batch in SEARCH_BATCHES:
            begin = time.perf_counter()
            outputs[batch] = _translate(trainer, test, batch, tokens)
            times[batch].append(time.perf_counter() - begin)
    return [_search_row(test, batch, times[batch][1:], outputs[batch]) for batch in SEARCH_BATCHES]


def _translate(trainer: Any, test: Any, batch: int, tokens: int) -> list[list[str]]:
    """The tokens of the best translations, of which each has as many."""
    from joeynmt import prediction
    from joeynmt.search import search

    # `predict` reads the fewest tokens among its settings, and does not hand them on to `search`.
    prediction.search = functools.partial(search, min_output_length=tokens)
    args = trainer.dev_cfg._replace(batch_size=batch, max_output_length=tokens)
    settings = {"device": trainer.device, "n_gpu": 0, "autocast": trainer.autocast}
    return prediction.predict(trainer.model, test, compute_loss=False, args=args, **settings)[3]


def _search_row(test: Any, batch: int, times: list[float], outputs: list[list[str]]) -> dict:
    source = test.get_list(test.src_lang, tokenized=True)
    tokens = sum(len(output) for output in outputs)
    median, best = statistics.median(times), min(times)
    return {
        "batch": batch,
        "passes": len(times),
        "seconds": {"median": median, "min": best},
        "sentences_per_second": {"median": len(outputs) / median, "best": len(outputs) / best},
        "tokens_per_second": {"median": tokens / median, "best": tokens / best},
        "output_tokens": {"min": min(map(len, outputs)), "max": max(map(len, outputs))},
        "source_tokens": {"mean": statistics.mean(len(s) + 1 for s in source), "max": max(map(len, source)) + 1},
        "load": os.getloadavg()[0],
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with train.en.gz, train.de.gz, ...")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    parser.add_argument("--train-seconds", type=float, default=60, help="how long the training steps are timed")
    parser.add_argument("--subwords", type=Path, help="a sentencepiece model to use instead of learning one")
    parser.add_argument("--sentences", type=int, default=100, help="how many test sentences are translated")
    parser.add_argument("--tokens", type=int, default=16, help="how many tokens each translation is made to have")
    parser.add_argument("--passes", type=int, default=5, help="timed passes of the search, after the dropped one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
