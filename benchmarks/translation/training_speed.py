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
from regard.translation.accelerator import CudaGraphUpdate
from regard.translation.batching import Batch, TrainingTokens, make_batch
from regard.translation.dataset import learn_vocabularies
from regard.translation.model import Architecture, EncoderDecoder
from regard.translation.recipe import Recipe
from regard.translation.training import Update, make_optimiser

TURNS = 7


def batches(tokens: TrainingTokens, count: int) -> list[Batch]:
    epoch = tokens.epoch(0)
    return [make_batch(planned, epoch.sources, epoch.targets) for planned in epoch.plans[:count]]


def tokens_per_second(update: Callable[[Batch], None], work: list[Batch], device: torch.device) -> float:
    begun = time.perf_counter()
    for batch in work:
        update(batch)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return sum(batch.tokens for batch in work) / (time.perf_counter() - begun)


def compare(options: argparse.Namespace, batch_tokens: int) -> dict:
    device = torch.device(options.device)
    recipe = Recipe(Architecture(joint=True, tied=True)).with_flags({"batch_tokens": batch_tokens})
    pairs = read(options.data, "train", "de")
    source, target = learn_vocabularies(recipe, pairs)
    graphed = device.type == "cuda"
    torch.manual_seed(0)
    plain = PlainEncoderDecoder(len(source)).to(device)
    ours = EncoderDecoder(recipe.model, len(source), len(target)).to(device)
    plain_update = Update(plain, make_optimiser(plain, recipe.training), recipe.training)
    eager = Update(ours, make_optimiser(ours, recipe.training), recipe.training)
    fast = CudaGraphUpdate(eager) if graphed else eager
    few, many = (12, 15) if graphed else (2, 2)
    plain_work = batches(TrainingTokens(pairs, source, target, recipe, 1), few * (TURNS + 1))
    fast_work = batches(TrainingTokens(pairs, source, target, recipe, 4 if graphed else 1), many * (TURNS + 1))
    for batch in {(*batch.source.shape, batch.target.shape[1]): batch for batch in fast_work}.values():
        fast(batch)
    rates: dict[str, list[float]] = {"plain": [], "regard": []}
    for turn in range(TURNS + 1):
        plain_part, fast_part = plain_work[turn * few :][:few], fast_work[turn * many :][:many]
        rates["plain"].append(tokens_per_second(plain_update, plain_part, device))
        rates["regard"].append(tokens_per_second(fast, fast_part, device))
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
    if options.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    rows = [compare(options, size) for size in ((1024, 4096) if options.device == "cuda" else (1024,))]
    date = datetime.now(UTC).date().isoformat()
    kept = {"date": date, "machine": machine(options.device), "rows": rows}
    options.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
