"""Additive attention against its textbook form, which builds a (queries x keys x hidden) tensor."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from types import FunctionType

import torch
from torch import Tensor

import regard
from benchmarks.measure import compare, relative_error
from regard.backends.triton.additive import MIN_LIFT_WORK
from regard.experiments.costs import peak_bytes

# batch, tokens, hidden, value_dim
SIZES = {
    "cpu": [(2, 64, 128, 64), (2, 128, 128, 64), (2, 256, 128, 64), (2, 512, 128, 64), (1, 1024, 128, 64)],
    "cuda": [(8, 1024, 128, 64), (8, 4096, 128, 64)],
}
# What a lift is allowed, so that forward the output errs by less than 1e-3, and backward no gradient by 2e-3.
LIFTED = {(1024, False): 1.5e-3, (4096, False): 2.5e-3, (1024, True): 1.5e-3, (4096, True): 2e-3}
EAGER_ELEMENTS = 2**30
# Up to so many tokens the host takes longer to ask than the GPU to answer: there calls are also timed as programs whose
# kernels torch.compile records in a CUDA graph, theirs and ours.
CAPTURED_TOKENS = 1024
CAPTURED = {"dynamic": False, "mode": "reduce-overhead"}
LENGTHS = {"cpu": (64, 128, 256, 512, 1024), "cuda": (256, 512, 1024, 2048, 4096, 8192, 16384)}
LONGEST = 65_536
# What is compiled is called so; on a CPU the library is called in both ways.
COMPILED = ", torch.compile"
COPIES = count()
# Queries whose textbook scores in float64 are held at once.
JUDGED = 32


def run(device: str) -> list[dict]:
    """Rows for forward, and for forward and backward, against each textbook form in plain operations and compiled."""
    rows = []
    for size in SIZES[device]:
        batch, tokens, hidden, _ = size
        is_short = device == "cuda" and tokens <= CAPTURED_TOKENS
        for backward in (False, True):
            programs = {f"{name}{COMPILED}": compiled(form, dynamic=False) for name, form in TEXTBOOK.items()}
            captured = {f"{name}{COMPILED}": compiled(form, **CAPTURED) for name, form in TEXTBOOK.items()}
            plain = {} if batch * tokens * tokens * hidden > EAGER_ELEMENTS else TEXTBOOK
            for tolerance in allowed(device, tokens, backward):
                how = backward, device, tolerance
                rows += compared(*size, *how, plain | programs, captured=False)
                rows += compared(*size, *how, captured, captured=True) if is_short else []
    return rows


def allowed(device: str, tokens: int, backward: bool) -> tuple[float | None, ...]:
    """The tolerances that are tried: none, and on a GPU the lift's."""
    return (None, LIFTED[tokens, backward]) if device == "cuda" else (None,)


def beside(device: str) -> dict[str, list[dict]]:
    """What figures are drawn from, and on a GPU the longest sequence."""
    return {"curve": curve(device), **({"longest": longest()} if device == "cuda" else {})}


def textbook(a: Tensor, b: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """Eq. 12 as books write it, after the projections; Keras has its sum."""
    scores = (torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3)) * weight).sum(-1)
    return scores.softmax(-1) @ value


def textbook_product(a: Tensor, b: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """The same with the sum as a matrix product, as d2l's linear layer forms it."""
    scores = torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3)) @ weight.flatten()
    return scores.softmax(-1) @ value


TEXTBOOK: dict[str, Callable[..., Tensor]] = {"textbook": textbook, "textbook as a product": textbook_product}


def compiled(form: Callable[..., Tensor], **how: bool | str) -> Callable[..., Tensor]:
    """torch.compile of a copy: what torch learns of one program's lengths does not reach another's."""
    assert isinstance(form, FunctionType)
    code = form.__code__.replace(co_name=f"{form.__name__}_{next(COPIES)}")
    copy = FunctionType(code, form.__globals__, None, form.__defaults__, form.__closure__)
    copy.__kwdefaults__ = form.__kwdefaults__
    return torch.compile(copy, **how)


def compared(
    batch: int, tokens: int, hidden: int, value_dim: int, backward: bool, device: str, tolerance: float | None,
    forms: dict[str, Callable[..., Tensor]], *, captured: bool,
) -> list[dict]:  # fmt: skip
    """A row for each form, with the relative L2 error of output and gradients against float64.

    captured: the forms are programs that a GPU records, and so is the library's. Its graphs have their own memory.
    """
    inputs, score = drawn(batch, tokens, hidden, value_dim, device, backward)
    weight = score.weight.detach().clone().requires_grad_(backward)
    rows = []

    def library(attend: Callable[..., Tensor], inputs: Sequence[Tensor] = inputs) -> list[Tensor]:
        output = attend(*inputs, score, tolerance=tolerance)
        return [output, *(gradients(output, [*inputs, score.weight]) if backward else ())]

    with torch.set_grad_enabled(backward):
        settle(score, inputs)
        one = [x.detach()[:1].requires_grad_(backward) for x in inputs]
        exact = judged(one, weight, backward)
        ways = {"regard.attend": compiled(regard.attend, **CAPTURED) if captured else regard.attend}
        if device == "cpu":
            ways[f"regard.attend{COMPILED}"] = compiled(regard.attend)
        errors = {
            label: [relative_error(x, y) for x, y in zip(library(attend, one), exact, strict=True)]
            for label, attend in ways.items()
        }
        del exact
        why = regard.why(*inputs, score, tolerance=tolerance)
        size = {"batch": batch, "tokens": tokens, "hidden": hidden, "value_dim": value_dim}
        how = {"backward": backward, "captured": captured, "tolerance": tolerance}
        how |= {"backend": why.backend, "bound": why.bound, "reach": score.reach.range}
        for name, form in forms.items():

            def peer(form: Callable[..., Tensor] = form) -> list[Tensor]:
                output = form(*inputs, weight)
                return [output, *(gradients(output, [*inputs, weight]) if backward else ())]

            calls = {name: peer, **{label: partial(library, attend) for label, attend in ways.items()}}
            is_measured = device == "cuda" and not captured
            memory = {label: peak(call) for label, call in calls.items()} if is_measured else {}
            timing = compare(calls)
            rows.append({**size, **how, "errors": errors, "peak_bytes": memory, **timing})
    return rows


def drawn(
    batch: int, tokens: int, hidden: int, value_dim: int, device: str, backward: bool
) -> tuple[list[Tensor], regard.scores.Additive]:
    """a, b ~ N(0, 1), values likewise, w = 2 N(0, 1) / sqrt(hidden)."""
    torch.manual_seed(0)
    inputs = [torch.randn(batch, tokens, n, device=device) for n in (hidden, hidden, value_dim)]
    score = regard.scores.Additive.of_projected(hidden).to(device)
    score.weight.data = 2 * torch.randn(hidden, device=device) / hidden**0.5
    return [x.requires_grad_(backward) for x in inputs], score


def gradients(output: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Gradients for a cotangent that varies from value to value and is the same for every call."""
    along = torch.arange(output.shape[-1], device=output.device, dtype=output.dtype).cos_()
    return torch.autograd.grad(output, inputs, along.expand_as(output))


def settle(score: regard.scores.Additive, inputs: Sequence[Tensor]) -> None:
    """Let the score see the data as training does, and then stand still as at evaluation."""
    score.train()
    with torch.enable_grad():
        for _ in range(2):
            score.reach.observe(*inputs[:2])
            if inputs[0].device.type == "cuda":
                torch.cuda.synchronize()
    score.eval()


def judged(inputs: Sequence[Tensor], weight: Tensor, backward: bool) -> list[Tensor]:
    """The textbook form in float64, some queries at a time, and its gradients."""
    a, b, value, weight = (x.detach().double().requires_grad_(backward) for x in (*inputs, weight))
    outputs, grads = [], [torch.zeros_like(x) for x in (a, b, value, weight)]
    for first in range(0, a.shape[-2], JUDGED):
        output = textbook(a[:, first : first + JUDGED], b, value, weight)
        outputs.append(output.detach())
        if backward:
            for total, grad in zip(grads, gradients(output, (a, b, value, weight)), strict=True):
                total.add_(grad)
    return [torch.cat(outputs, -2), *(grads if backward else ())]


def peak(call: Callable[[], object]) -> int:
    """Bytes of GPU memory that a call takes beyond what is there already, once libraries have what they keep."""
    call()
    return peak_bytes(call, torch.device("cuda"))


def curve(device: str) -> list[dict]:
    """Milliseconds and bytes against length, each form where it runs, forward and backward together."""
    rows = []
    tolerances = {"exact": None, "lifted": 2e-3} if device == "cuda" else {"exact": None}
    batch = 8 if device == "cuda" else 2
    for tokens in LENGTHS[device]:
        inputs, score = drawn(batch, tokens, 128, 64, device, True)
        settle(score, inputs)
        calls = {
            name: lambda tolerance=tolerance, inputs=inputs, score=score: gradients(
                regard.attend(*inputs, score, tolerance=tolerance), [*inputs, score.weight]
            )
            for name, tolerance in tolerances.items()
            if tolerance is None or batch * tokens * tokens * 128 >= MIN_LIFT_WORK
        }
        if batch * tokens * tokens * 128 <= EAGER_ELEMENTS:
            calls["textbook"] = lambda inputs=inputs, score=score: gradients(
                textbook(*inputs, score.weight), [*inputs, score.weight]
            )
        timing = compare(calls)
        memory = {name: peak(call) for name, call in calls.items()} if device == "cuda" else {}
        rows.append({"batch": batch, "tokens": tokens, "seconds": timing["seconds"], "peak_bytes": memory})
    return rows


def longest() -> list[dict]:
    """One sequence so long that no textbook form could run, forward and backward."""
    rows = []
    for tolerance in (None, 2e-3):
        inputs, score = drawn(1, LONGEST, 128, 64, "cuda", True)
        settle(score, inputs)

        def call(tolerance: float | None = tolerance, inputs: list[Tensor] = inputs, score=score) -> object:
            return gradients(regard.attend(*inputs, score, tolerance=tolerance), [*inputs, score.weight])

        bytes_taken = peak(call)
        seconds = compare({"regard.attend": call})["seconds"]
        rows.append({"tokens": LONGEST, "tolerance": tolerance, "seconds": seconds, "peak_bytes": bytes_taken})
    return rows
