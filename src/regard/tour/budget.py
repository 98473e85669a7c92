"""How much work a tour may do: enough for good numbers, or just enough to see that everything runs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """The sizes of everything that takes time.

    draws: of the chapter's data, for the errors of kernels.
    seeds: of the experiment with rules that a score can or cannot learn; rule_updates: of each of its trainings.
    dates, lists: how many pairs the small translators are trained on; dates_epochs, lists_epochs: how often.
    judged_dates: test dates of each shown language; judged_lists: test lists of all lengths together.
    head_updates: of the layer that reads digits.
    workers: processes that work side by side; 1 stays in this one.
    """

    draws: int
    seeds: int
    rule_updates: int
    dates: int
    dates_epochs: int
    judged_dates: int
    lists: int
    lists_epochs: int
    judged_lists: int
    head_updates: int
    workers: int


FULL = Budget(
    draws=200,
    seeds=3,
    rule_updates=600,
    dates=10_000,
    dates_epochs=3,
    judged_dates=120,
    lists=36_000,
    lists_epochs=4,
    judged_lists=1_200,
    head_updates=600,
    workers=2,
)
QUICK = Budget(
    draws=2,
    seeds=2,
    rule_updates=4,
    dates=120,
    dates_epochs=1,
    judged_dates=6,
    lists=240,
    lists_epochs=1,
    judged_lists=36,
    head_updates=20,
    workers=1,
)
