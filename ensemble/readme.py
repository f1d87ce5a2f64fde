"""The README's headline: a table and two pictures, from ``summary.json`` and the pictures of a report. Needs no GPU.

``python -m cutlass_sk.ensemble.readme`` writes them where the README has its two marks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cutlass_sk.ensemble.planner_report import COMPUTE_BOUND, DTYPES
from cutlass_sk.errors import Error, reason
from cutlass_sk.provenance import save

BEGIN = "<!-- The headline, which `python -m cutlass_sk.ensemble.readme` writes. -->"
END = "<!-- The headline ends. -->"
CORPORA = {
    "paper_aligned": "the Stream-K paper's corpus, sides from 128 to 8192 rounded to 8",
    "planner": "log-uniform problems with sides from 128 to 8192, multiples of 8",
}
"""Whose ratios head the table: the first of these that was measured."""
ROWS = {
    "set_vs_cublas": "the set over cuBLAS",
    "set_vs_cublas_compute_bound": f"the set over cuBLAS, above {COMPUTE_BOUND} FLOP/B",
    "set_vs_cublas_fp32_reduce": "the set over cuBLAS with float32 sums",
    "set_vs_cublaslt_best": "the set over the best of cuBLASLt's algorithms",
    "set_vs_oracle": "the set over the oracle: the fastest, as measured, of an ensemble of data-parallel kernels for Hopper",
    "set_vs_oracle_of_set": "the set over an oracle of all its own kernels at all widths, data-parallel",
    "set_vs_oracle_paper": "the set over an oracle of the paper's kernels",
    "single_vs_cublas": "its first kernel over cuBLAS",
    "single_vs_oracle": "its first kernel over the oracle",
    "single_vs_data_parallel": "its first kernel over the same kernel data-parallel",
}
OTHERS = {
    "paper_raw": "the set over cuBLAS, sides that are not rounded",
    "real": "the set over cuBLAS, problems that practitioners run",
}
"""Other corpora: their ``set_vs_cublas`` has a row of its own."""
SIZES = {
    "single": "its first kernel",
    "set": "the set",
    "oracle_hopper": "the ensemble for Hopper",
    "oracle_paper": "the paper's ensemble",
}
PICTURES = ("speedup.png", "size.png")


class HeadlineError(Error, ValueError):
    """The headline cannot be written; the message names the file and the way out."""


def headline(summary: Mapping[str, Any]) -> str:
    """The text between the marks. HeadlineError for a summary without a corpus that the table could be of."""
    corpus = chief(summary)
    dtypes = [name for name in DTYPES if corpus in summary.get(name, {})]
    source: Mapping[str, Any] = next((one for one in summary["provenance"]["sources"] if one.get("gpu")), {})
    made_up = any(one.get("made_up") for one in summary["provenance"]["sources"])
    lines = [
        f"{'Made-up times. ' if made_up else ''}{source.get('gpu')}, commit {str(source.get('commit'))[:7]}, {CORPORA[corpus]}:",
        "times of the other over ours, so that above 1 is faster than it: geometric mean (mean; worst to best; problems).",
        "",
        f"| | {' | '.join(' -> '.join(dict.fromkeys(DTYPES[name])) for name in dtypes)} |",
        "|---" * (len(dtypes) + 1) + "|",
        *(f"| {title} | {' | '.join(cells)} |" for title, cells in _rows(summary, dtypes, corpus) if set(cells) != {"-"}),
        "",
        f"![Speed-up over cuBLAS by intensity and size](docs/figures/{PICTURES[0]})",
        "",
        f"![Speed-up over cuBLAS against bytes of GPU code](docs/figures/{PICTURES[1]})",
    ]
    return "\n".join(lines)


def chief(summary: Mapping[str, Any]) -> str:
    """The corpus that heads the table."""
    for corpus in CORPORA:
        if any(corpus in summary.get(name, {}) for name in DTYPES):
            return corpus
    raise HeadlineError(f"the summary has no times of {' or '.join(CORPORA)}; make it of such records with `cutlass-sk report`")


def pictures(summary: Mapping[str, Any]) -> dict[str, str]:
    """File of the README -> the report's picture that it is."""
    corpus = chief(summary)
    dtypes = next(name for name in ("float16_float32", *DTYPES) if corpus in summary.get(name, {}))
    name = f"speedup-{dtypes}-{corpus}-back-to-back".replace("_", "-")
    return dict(zip(PICTURES, (f"{name}.png", "size.png"), strict=True))


def replaced(text: str, block: str) -> str:
    """The README with ``block`` between the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise HeadlineError(f"README.md lacks the marks; put {BEGIN} and {END} on lines of their own")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> None:
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--report", type=Path, default=root / "results/h200", help="folder of `cutlass-sk report`, with its pictures"
    )
    parser.add_argument("--root", type=Path, default=root, help="folder of README.md and docs/figures")
    given = parser.parse_args(arguments)
    try:
        write(given.report, given.root)
    except Error as error:
        parser.exit(2, f"error: {error}\n")


def write(report: Path, root: Path) -> None:
    """Puts the headline of a report into the README and its pictures into docs/figures of ``root``. HeadlineError, WriteError."""
    try:
        summary = json.loads((report / "summary.json").read_text(encoding="utf-8"))
        copies = {name: (report / "pictures" / source).read_bytes() for name, source in pictures(summary).items()}
        text = (root / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        where = getattr(error, "filename", None) or report / "summary.json"
        raise HeadlineError(
            f"{where} cannot be read: {reason(error)}; `cutlass-sk report RECORDS --size SIZE -o {report}` makes it"
        ) from None
    save(root / "README.md", replaced(text, headline(summary)))
    for name, data in copies.items():
        save(root / "docs/figures" / name, data)


def _rows(summary: Mapping[str, Any], dtypes: Sequence[str], corpus: str) -> Iterator[tuple[str, list[str]]]:
    def cells(corpus: str, timing: str, name: str) -> list[str]:
        found = (summary[dtype].get(corpus, {}).get(timing, {}).get(name) for dtype in dtypes)
        return ["-" if one is None else "{geomean:.2f} ({mean:.2f}; {min:.2f} to {max:.2f}; {n:,})".format(**one) for one in found]

    for name, title in ROWS.items():
        yield title, cells(corpus, "back_to_back", name)
    for other, title in OTHERS.items():
        yield title, cells(other, "back_to_back", "set_vs_cublas")
    yield "the set over cuBLAS, one launch at a time, cold L2", cells(corpus, "isolated", "set_vs_cublas")
    for name, title in SIZES.items():
        sizes = [summary["library_size"].get(f"{dtype}_{name}") for dtype in dtypes]
        yield f"kernels, bytes of GPU code: {title}", [_size(one) for one in sizes]
    cublas = [summary["library_size"].get(name) for name in ("cublas", "cublaslt")]
    if all(one and one["cubin_bytes"] for one in cublas):
        total = sum(one["cubin_bytes"] for one in cublas if one)
        yield "bytes of GPU code for this architecture: cuBLAS and cuBLASLt, all dtypes", [f"{total:,}"] * len(dtypes)


def _size(size: Mapping[str, Any] | None) -> str:
    return "-" if size is None or size["cubin_bytes"] is None else f"{size['kernels']}, {size['cubin_bytes']:,}"


if __name__ == "__main__":
    main()
