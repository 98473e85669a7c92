"""Training speed against the textbook's loop over steps: target tokens a second, turn by turn in one run.

python -m benchmarks.translation.training_speed --data DIR --device cuda --out FILE
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.measure import machine
from benchmarks.translation.multi30k import read
from benchmarks.translation.plain_loop import PlainEncoderDecoder
from regard.translation.batching import Batch, make_batch
from regard.translation.dataset import Corpus
from regard.translation.model import Architecture
from regard.translation.model_folder import TrainedModel
from regard.translation.recipe import Recipe
from regard.translation.training import Trainer

TURNS = 7


def batches(trainer: Trainer, count: int) -> list[Batch]:
    epoch = trainer.batches.epoch(0)
    return [make_batch(plan, epoch.sources, epoch.targets) for plan in epoch.plans[:count]]


def tokens_per_second(update: Callable[[Batch], None], work: list[Batch], device: torch.device) -> float:
    begun = time.perf_counter()
    for batch in work:
        update(batch)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return sum(batch.tokens for batch in work) / (time.perf_counter() - begun)


def compare(options: argparse.Namespace, batch_tokens: int) -> dict:
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    flags = {"batch_tokens": batch_tokens, "precision": "tf32" if on_gpu else "float32"}
    recipe = Recipe(Architecture(joint=True, tied=True)).with_flags(flags)
    pairs = read(options.data, "train", "de")
    corpus = Corpus("multi30k", pairs, pairs[:1])
    few, many = (12, 15) if on_gpu else (2, 2)
    rates: dict[str, list[float]] = {"plain": [], "regard": []}
    with Trainer(recipe, corpus, device=device) as fast:
        torch.manual_seed(0)
        plain_model = PlainEncoderDecoder(len(fast.source_vocabulary))
        init = TrainedModel(plain_model, fast.source_vocabulary, fast.target_vocabulary, {})
        with Trainer(recipe, corpus, device=device, init=init, cuda_graphs=False) as plain:
            plain_work, fast_work = batches(plain, few * (TURNS + 1)), batches(fast, many * (TURNS + 1))
            for batch in {(*batch.source.shape, batch.target.shape[1]): batch for batch in fast_work}.values():
                fast.update(batch)  # one CUDA graph for each shape
            for turn in range(TURNS + 1):
                plain_part, fast_part = plain_work[turn * few :][:few], fast_work[turn * many :][:many]
                rates["plain"].append(tokens_per_second(plain.update, plain_part, device))
                rates["regard"].append(tokens_per_second(fast.update, fast_part, device))
    medians = {name: statistics.median(values[1:]) for name, values in rates.items()}
    row = {
        "what": f"training, embedding 256, hidden 512, batches of {batch_tokens:,} tokens",
        "against": "a textbook's loop over steps",
        "other": medians["plain"],
        "regard": medians["regard"],
        "unit": "tokens/s",
        "ratio": medians["regard"] / medians["plain"],
        "tokens_per_second": {name: values[1:] for name, values in rates.items()},
    }
    print({key: value for key, value in row.items() if key != "tokens_per_second"}, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = [compare(options, size) for size in ((1024, 4096) if options.device == "cuda" else (1024,))]
    date = datetime.now(UTC).date().isoformat()
    kept = {"date": date, "machine": machine(options.device), "rows": rows}
    options.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
