"""Compare the reference with the oracle on one case."""

import torch
from tests import bounds, oracle
from tests.contracts.agreement import Case, build
from tests.contracts.cases import SCORES, array

import regard
from regard.scores.kernels import TaperedKernel

QUERIES, KEYS = 5, 7


def misjudged(score: str, mask: str) -> list[str]:
    """What the reference in float64 gets wrong of output, log_mass, scores and weights; empty when it is right."""
    case = Case(score, mask, torch.float64, QUERIES, KEYS)
    call = build(case, torch.float64)
    record = regard.inspect(
        call.query, call.key, call.value, call.score, call.mask, bias=call.bias, backend="reference"
    )
    right = judge(case)
    dims = SCORES[score].query_dim + SCORES[score].key_dim
    # Roundings behind one entry: the score's terms, a few functions, then the sums over keys.
    terms = 4 * (dims + KEYS + 8)
    found = {"output": record.output, "log_mass": record.log_mass}
    found |= {"scores": record.scores(), "weights": record.weights()}
    wrong = []
    for name, tensor in found.items():
        expected = torch.from_numpy(getattr(right, name))
        if name == "scores" and isinstance(getattr(call.score, "kernel", None), TaperedKernel):
            # The logarithm is steep where a kernel ends; what is rounded is the kernel.
            tensor, expected = tensor.exp(), expected.exp()
        measured, allowed = bounds.error(tensor, expected), bounds.roundings(expected, terms)
        if not measured <= allowed:
            wrong.append(f"{name}: error {measured:.3g}, allowed {allowed:.3g}")
    return wrong


def judge(case: Case) -> oracle.Pooled:
    """What the oracle says of a case."""
    call = build(case, torch.float64)
    bias = None if call.bias is None else array(call.bias)
    formula = SCORES[case.score].formula(call.score)
    return oracle.pool_batch(formula, *(array(x) for x in (call.query, call.key, call.value)), call.allowed, bias)
