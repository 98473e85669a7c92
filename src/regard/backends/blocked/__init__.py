"""The backend "blocked": tiles and online softmax on any device, memory linear in tokens in both directions."""

from regard.backends import row_blocks
from regard.backends.base import Backend, Need, Plan, Problem, Refusal, Result, full_precision
from regard.backends.blocked import operator
from regard.backends.blocked.additive import keeps, promised
from regard.checks import has_empty_input

KINDS = ("dot", "distance", "additive")
"""Closed forms with tiles of their own; other scores run in blocks of rows."""


class Blocked(Backend):
    """Runs every problem that is not empty, tile by tile."""

    name = "blocked"

    def plan(self, problem: Problem, need: Need) -> Plan | Refusal:
        """Accept."""
        if need == "weights":
            return self.refuse("it does not return weights")
        if has_empty_input(problem.pair.query, problem.pair.key, problem.value):
            return self.refuse("an input is empty")
        if problem.pair.kind not in KINDS or callable(problem.bias):
            return Plan(self.name, row_blocks.run)
        return Plan(self.name, _run)

    def error_bound(self, problem: Problem) -> str:
        """Return the promised error of one score."""
        dtype = problem.pair.query.dtype
        if problem.pair.kind == "additive" and keeps(problem.tolerance, dtype):
            return problem.additive_bound(promised(dtype))
        return super().error_bound(problem)


def _run(problem: Problem) -> Result:
    with full_precision(problem.value.device):
        return Result(*operator.run(problem))
