"""Collections of GEMM problems: the paper's, real-world ones, sweeps around a GPU's SMs, and a user's own."""

from .csv_file import from_csv, read_csv, to_csv
from .named import NAMES, SEED, by_name, paper, real, sm, strong_scaling, waves
from .problem import Corpus, CorpusError, Problem
from .summary import Spread, Summary, summarize

__all__ = [
    "NAMES",
    "SEED",
    "Corpus",
    "CorpusError",
    "Problem",
    "Spread",
    "Summary",
    "by_name",
    "from_csv",
    "paper",
    "read_csv",
    "real",
    "sm",
    "strong_scaling",
    "summarize",
    "to_csv",
    "waves",
]
