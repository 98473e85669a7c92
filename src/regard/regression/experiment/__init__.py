"""The chapter's experiment: its data, its kernels over many draws, its widths, and the step to the dot product."""

from regard.regression.experiment.procedure import DRAWS, Experiment, compute, run

__all__ = ["DRAWS", "Experiment", "compute", "run"]
