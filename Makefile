# The README's two commands: `make demo` and `make test`. Everything is installed into .venv, and nothing elsewhere.
# PYTHON=... chooses the interpreter, 3.10 or later.

PYTHON ?= python3
PIP := .venv/bin/python -m pip install --quiet
# Folders count too, so that a deleted file is noticed.
SOURCES := pyproject.toml README.md LICENSE NOTICE $(shell find cutlass_sk generator ensemble -not -name __pycache__ -not -name '*.pyc')

.PHONY: demo test lint clean

demo: .venv/installed
	.venv/bin/cutlass-sk demo

# From tests/: in the root, `python -c "import cutlass_sk"` would find the bare folder and not what is installed.
test: .venv/installed
	cd tests && ../.venv/bin/pytest

# From .venv/, for the same reason: the installed package has cutlass_sk.generator where mypy looks for it.
lint: .venv/installed
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	cd .venv && bin/mypy --config-file ../pyproject.toml -p cutlass_sk

clean:
	rm -rf .venv build cutlass_sk.egg-info

# nvcc comes from wheels only where the machine has none that works.
.venv/installed: $(SOURCES) | .venv/torch
	rm -rf build
	$(PIP) '.[dev]'
	.venv/bin/cutlass-sk doctor > /dev/null || $(PIP) '.[dev,nvcc]'
	touch $@

# torch first and by itself: which build it is, CPU or CUDA, is left to pip's configuration, or to who installed one already.
.venv/torch: | .venv/bin/python
	$(PIP) 'torch>=2.11'
	touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or later is needed; PYTHON=... chooses one" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv .venv
