"""A plugin of pytest: the hypothesis profile of one round, short enough that many rounds have different seeds."""

from hypothesis import settings

EXAMPLES = 300
settings.register_profile("round", deadline=None, max_examples=EXAMPLES, derandomize=False, database=None)
