"""`regard translate`: sentences out of arguments, files or pipes, translations and alignments into others."""

from regard.translation.piping.procedure import run
from regard.translation.piping.wishes import ALIGNMENTS, UNITS, Wishes

__all__ = ["ALIGNMENTS", "UNITS", "Wishes", "run"]
