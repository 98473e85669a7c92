"""The figures of the laboratory, each drawn from what an experiment found."""
