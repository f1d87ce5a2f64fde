"""The planner's constants measured on this GPU: here for a few shapes, into a file that is thrown away. Needs a GPU."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

if not torch.cuda.is_available():
    raise SystemExit("constants are measured on a GPU, and torch finds none")

CUTLASS_SK = Path(sys.executable).with_name("cutlass-sk")

with TemporaryDirectory() as folder:
    # Without -o it becomes your own calibration, with which everything is planned from then on; ten minutes are worth it.
    output = Path(folder) / "own.json"
    options = ["--dtype", "float64", "--shapes", "12", "--budget-seconds", "20", "-o", output]
    subprocess.run([CUTLASS_SK, "calibrate", *options], check=True)
    calibration = json.loads(output.read_text())

print(", ".join(calibration))
