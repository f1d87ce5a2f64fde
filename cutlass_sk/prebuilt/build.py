"""Builds libraries of many kernels: each kernel is compiled through the cache, to an object, and one run time serves them all.

The same sources, compilers and CUTLASS give the same bytes, wherever and whenever they are built.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import CompileError, DeviceError, DtypeError, WriteError, reason
from ..generator import abi
from ..generator.catalog import COMPILED_ONLY
from ..generator.emit import PACK
from ..generator.spec import COMPILED, KernelSpec
from ..jit.build import Source, compile_sources, sources
from ..jit.cache import Entry
from ..jit.toolchain import Toolchain, find_toolchain
from ..provenance import save
from . import Library, sources_digest, suffix


def build_library(specs: Sequence[KernelSpec], architecture: str, folder: Path, *, progress: bool | None = None) -> Library:
    """Compiles ``specs``, of one pair of dtypes, and what packs operands, for ``sm_<architecture>``; writes library and ``.json``
    into ``folder``.

    Raises as ``jit.build.build`` does, DeviceError for kernels that have no launch, and WriteError.
    """
    specs = list(dict.fromkeys(spec.binary for spec in specs))
    pairs = sorted({(spec.dtype, spec.out_dtype) for spec in specs})
    if len(pairs) != 1:
        raise DtypeError(f"a library holds kernels of one pair of dtypes, not of {len(pairs)}: {pairs}")
    ((dtype, out_dtype),) = pairs
    if unlaunched := next((spec for spec in specs if spec.generation in COMPILED_ONLY), None):
        raise DeviceError(f"{unlaunched.name} is {COMPILED}: it has no launch, and a library of kernels holds what is launched")
    toolchain = find_toolchain()
    compiled = [*sources(specs, architecture), Source("pack", PACK, architecture)]
    objects = compile_sources([_object(source) for source in compiled], progress=progress)
    library = folder / f"{dtype}_{out_dtype}_{architecture}.so"
    data = linked(objects, toolchain)
    described = Library(
        file=library.name,
        architecture=architecture,
        dtype=dtype,
        out_dtype=out_dtype,
        kernels=tuple(spec.name for spec in specs),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        abi=abi.ABI_VERSION,
        sources=sources_digest(),
        versions={"nvcc": toolchain.nvcc_version, "host_compiler": toolchain.host_version, "cutlass": toolchain.cutlass_version},
        packs=True,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{folder} cannot be made: {reason(error)}; name a folder that can be written to") from None
    save(library, data)
    save(library.with_suffix(".json"), described.to_json())
    return described


def _object(source: Source) -> Source:
    return Source(source.name, source.text, source.architecture, suffix(source.name))


def linked(objects: Sequence[Entry], toolchain: Toolchain) -> bytes:
    """A shared object of ``objects`` and one CUDA run time. Nothing in it says where or when it was made."""
    with TemporaryDirectory(prefix="cutlass_sk-") as place:
        names = []
        for number, entry in enumerate(objects):
            names.append(f"{number}.o")
            (Path(place) / names[-1]).write_bytes(entry.library.read_bytes())
        (Path(place) / "exported").write_text("{ global: cutlass_sk_*; local: *; };\n")
        options = ("-shared", "-Wl,--strip-all,--build-id=none,--version-script=exported", f"-L{toolchain.cuda_libraries}")
        libraries = ("-lcudart_static", "-lrt", "-lpthread", "-ldl")
        command = [str(toolchain.host_compiler), *options, "-o", "library.so", *names, *libraries]
        done = subprocess.run(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            shown = shlex.join(command)
            raise CompileError(
                f"a library of {len(objects)} kernels could not be linked (exit status {done.returncode})\ncommand: {shown}\n"
                f"{done.stdout[-2000:]}",
                command=shown,
                log=done.stdout,
                source=objects[0].source,
            )
        return (Path(place) / "library.so").read_bytes()
