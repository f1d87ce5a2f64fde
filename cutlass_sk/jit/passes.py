"""nvcc's host and device passes side by side: nvcc runs them one after the other, though neither needs the other's result.

A dry run says what nvcc would run. A shell runs it, the two passes at once; the compiled bytes are the same. Where a dry run reads
otherwise than expected there is no script, and nvcc runs as it always does.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

MODULE = "kernel.module_id"
"""What the file of a source ``kernel.cu`` is called that tells both passes what to name internal symbols after."""

_ASSIGNMENT = re.compile(r"(PATH|LD_LIBRARY_PATH|CICC_PATH|NVVMIR_LIBRARY_DIR|TOP)=(.*)")
_MAKES_MODULE = "--gen_module_id_file"
_HOST = ("-E", "cudafe++")
_DEVICE = ("-E", "cicc", "ptxas", "fatbinary")


def script(command: Sequence[str], directory: Path, environment: Mapping[str, str], key: str) -> tuple[str, dict[str, str]] | None:
    """For /bin/sh, in ``directory``: what ``command`` (nvcc with ``kernel.cu``) does, and the environment for it; None if unknown.

    ``key``: hexadecimal digits that name the module. The file MODULE is written for them.
    """
    try:
        done = subprocess.run(
            [*command, "--keep", "--dryrun"], cwd=directory, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        lines = [line.removeprefix("#$ ") for line in done.stderr.splitlines() if line.startswith("#$ ")]
        variables = {found[1]: found[2].strip() for line in lines if (found := _ASSIGNMENT.fullmatch(line))}
        steps = [shlex.split(line.replace("$CICC_PATH", variables["CICC_PATH"])) for line in lines if not re.match(r"\w+=", line)]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None
    steps = [step for step in steps if step and step[0] != "rm"]
    host, device, rest = steps[:2], steps[2:6], steps[6:]
    if not (_are(host, _HOST) and _are(device, _DEVICE) and rest and _MAKES_MODULE in host[1] and MODULE in host[1]):
        return None
    host[1].remove(_MAKES_MODULE)
    (directory / MODULE).write_text(f"_{key[:8]}_9_kernel_cu_{key[8:16]}")
    both = "\n".join(f"(\n{_script(steps)}\n) & {name}=$!" for name, steps in (("host", host), ("device", device)))
    waited = 'wait $host || failed=1\nwait $device || failed=1\ntest -z "$failed"'
    return "\n".join(("set -e", both, waited, _script(rest))), {**environment, **variables}


def _are(steps: Sequence[Sequence[str]], expected: Sequence[str]) -> bool:
    """Whether these are the programs, or preprocessors (``-E``), that are expected, in this order."""
    return len(steps) == len(expected) and all(
        name in step if name == "-E" else Path(step[0]).name == name for step, name in zip(steps, expected, strict=True)
    )


def _script(steps: Sequence[Sequence[str]]) -> str:
    return "\n".join(map(shlex.join, steps))
