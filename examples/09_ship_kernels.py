"""Kernels compiled here, used where there is no compiler: a library in a folder, which another process is told of."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

CUTLASS_SK = Path(sys.executable).with_name("cutlass-sk")
THERE = """
from cutlass_sk import Gemm, prebuilt
(library,) = prebuilt.libraries()
plan = Gemm("float16", device="h200", kernels=list(library.kernels)).plan(64, 4096, 4096)
found = prebuilt.find(plan.kernel, "90a")
print(found.library.name, "has", plan.kernel.binary)
"""

with TemporaryDirectory() as folder:
    # One kernel in one layout; without --tile and --layout it is the set, which takes minutes.
    options = ["--dtype", "float16", "--arch", "90a", "--tile", "64x256x64", "--cluster", "4x1", "--layout", "tt", "-o", folder]
    subprocess.run([CUTLASS_SK, "build", *options], check=True)
    subprocess.run([sys.executable, "-c", THERE], env={**os.environ, "CUTLASS_SK_PREBUILT_DIR": folder, "PATH": ""}, check=True)
