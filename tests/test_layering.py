"""Imports go one way: generator <- cutlass_sk <- ensemble <- tests."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"generator": "cutlass_sk.generator", "cutlass_sk": "cutlass_sk", "ensemble": "cutlass_sk.ensemble"}
"""Folder -> the package it is installed as."""

TOUCHES_THE_MACHINE = {"os", "pathlib", "shutil", "subprocess", "tempfile", "socket", "io", "importlib", "multiprocessing"}


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def package_of(path: Path) -> str:
    """The package that relative imports in ``path`` start from."""
    folder, *below = path.relative_to(ROOT).parent.parts
    return ".".join([PACKAGES[folder], *below])


def imported(text: str, package: str) -> Iterator[str]:
    """Full names of all that a module imports, at any depth, for type checking too: modules, and names taken from them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            yield ast.literal_eval(node.args[0]) if node.args and isinstance(node.args[0], ast.Constant) else "<computed>"


def imports_of(path: Path) -> set[str]:
    return set(imported(path.read_text(encoding="utf-8"), package_of(path)))


def below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_imports_are_resolved() -> None:
    text = """
import torch.nn, os as system
from . import planner
from .device import Device
from ..generator import abi
from .. import ensemble
if TYPE_CHECKING:
    from numpy import ndarray
def late():
    import importlib
    importlib.import_module("cutlass_sk.ensemble.timing")
    __import__(name)
"""
    assert set(imported(text, "cutlass_sk.jit")) == {
        "torch.nn",
        "os",
        "cutlass_sk.jit.planner",
        "cutlass_sk.jit.device.Device",
        "cutlass_sk.generator.abi",
        "cutlass_sk.ensemble",
        "numpy.ndarray",
        "importlib",
        "cutlass_sk.ensemble.timing",
        "<computed>",
    }
    assert package_of(ROOT / "generator/spec.py") == "cutlass_sk.generator"
    assert package_of(ROOT / "cutlass_sk/jit/build.py") == "cutlass_sk.jit"


def test_the_source_tree_is_found() -> None:
    names = {path.relative_to(ROOT).as_posix() for folder in PACKAGES for path in sources(folder)}
    assert {"generator/emit.py", "cutlass_sk/gemm.py", "cutlass_sk/jit/build.py", "ensemble/__init__.py"} <= names


@pytest.mark.parametrize("path", sources("generator"), ids=lambda path: path.name)
def test_generator_imports_itself_cutlass_library_and_harmless_parts_of_python(path: Path) -> None:
    allowed = (set(sys.stdlib_module_names) | {"cutlass_library"}) - TOUCHES_THE_MACHINE
    for name in imports_of(path):
        assert below(name, "cutlass_sk.generator") or name.partition(".")[0] in allowed, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", sources("cutlass_sk"), ids=lambda path: path.relative_to(ROOT / "cutlass_sk").as_posix())
def test_cutlass_sk_imports_nothing_of_ensemble(path: Path) -> None:
    for name in imports_of(path):
        assert not below(name, "cutlass_sk.ensemble") and name != "<computed>", f"{path} imports {name}"


@pytest.mark.parametrize("folder", PACKAGES)
def test_packages_are_imported_under_their_installed_names_and_tests_by_nobody(folder: str) -> None:
    for path in sources(folder):
        for name in imports_of(path):
            assert name.partition(".")[0] not in ("generator", "ensemble", "tests", "conftest", "plans"), f"{path} imports {name}"
