"""A toolchain that takes no time: its nvcc compiles a text as C++, and writes the library in pieces."""

from __future__ import annotations

from pathlib import Path

PARTS = (
    "include/cuda_runtime.h",
    "include/crt/host_config.h",
    "include/cuda/std/utility",
    "lib/libcudart_static.a",
    "nvvm/bin/cicc",
)

SCRIPT = """#!/bin/sh
case "$1" in
--version) echo 'Cuda compilation tools, release 13.0, V13.0.1'; exit;;
--dryrun) echo '#$ TOP={tree}'; echo '#$ INCLUDES="-I{tree}/include"'; echo '#$ CICC_PATH={tree}/nvvm/bin'; exit;;
esac
case "$*" in *--dryrun*) exit 1;; esac
echo $$ >> {tree}/compilations
{before}
g++ -shared -fPIC -x c++ kernel.cu -o whole.so || exit 1
head -c 5000 whole.so > kernel.so
sleep 0.05
tail -c +5001 whole.so >> kernel.so
"""


class FakeNvcc:
    """Below ``folder``, whose path has no spaces. ``before``: shell that runs before a compilation."""

    def __init__(self, folder: Path, before: str = "") -> None:
        self.tree = folder / "toolkit"
        for part in PARTS:
            (self.tree / part).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / part).touch()
        self.packages = folder / "packages"  # with a CUTLASS that is read in no time
        header = self.packages / "cutlass_library/source/include/cutlass/cutlass.h"
        header.parent.mkdir(parents=True)
        for path in (header, self.packages / "cutlass_library/__init__.py"):
            path.touch()
        self.path = self.tree / "bin/nvcc"
        self.path.parent.mkdir()
        self.prepare(before)

    def prepare(self, before: str) -> None:
        self.path.write_text(SCRIPT.format(tree=self.tree, before=before))
        self.path.chmod(0o755)

    @property
    def compilations(self) -> int:
        log = self.tree / "compilations"
        return len(log.read_text().splitlines()) if log.exists() else 0


def answering(number: int) -> str:
    """A text whose library has a function ``answer`` that returns ``number``."""
    return f'extern "C" int answer() {{ return {number}; }}\n'
