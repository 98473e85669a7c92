"""Search over any step function: greedy, beam, sampling, forced scoring, ensembles; alignments survive them all."""

from regard.translation.search.beam import beam
from regard.translation.search.effort import Effort
from regard.translation.search.ensemble import States, ensemble
from regard.translation.search.forced import Forced, forced
from regard.translation.search.greedy import greedy
from regard.translation.search.hypothesis import Hypothesis
from regard.translation.search.penalty import penalty
from regard.translation.search.sample import sample
from regard.translation.search.step import State, Step, Stepped

__all__ = [
    "Effort",
    "Forced",
    "Hypothesis",
    "State",
    "States",
    "Step",
    "Stepped",
    "beam",
    "ensemble",
    "forced",
    "greedy",
    "penalty",
    "sample",
]
