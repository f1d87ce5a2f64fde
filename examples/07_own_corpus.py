"""Your own products, from a CSV, beside the same kernels data-parallel and cuBLAS. Without a GPU, times are made up."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

CUTLASS_SK = Path(sys.executable).with_name("cutlass-sk")
PROBLEMS = "m,n,k\n512,4096,4096\n512,11008,4096\n512,4096,11008\n128,128,16384\n"

with TemporaryDirectory() as folder:
    corpus, times = Path(folder) / "own.csv", Path(folder) / "times"
    corpus.write_text(PROBLEMS)
    subprocess.run([CUTLASS_SK, "corpus", corpus], check=True)
    command = [CUTLASS_SK, "bench", "-o", times, "--corpus", corpus, "--contenders", "set,data_parallel,cublas", "--no-table"]
    subprocess.run([*command, *([] if torch.cuda.is_available() else ["--dry-run"])], check=True)
    rows = [row for row in map(json.loads, (times / "times.jsonl").read_text().splitlines()) if "contenders" in row]

mark = "" if torch.cuda.is_available() else "made up: "
for row in rows:
    ours, cublas = (row["contenders"][name]["us"] for name in ("set", "cublas"))
    print(f"{mark}{row['m']} {row['n']} {row['k']}", f"{ours:.1f} us, {cublas / ours:.2f} times as fast as cuBLAS")
assert len(rows) == len(PROBLEMS.splitlines()) - 1
