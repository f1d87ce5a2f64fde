# The README's two commands: `make demo` and `make test`. Everything is installed into .venv, and nothing elsewhere.
# PYTHON=... chooses the interpreter, 3.10 or later.

PYTHON ?= python3
PIP := .venv/bin/python -m pip install --quiet
.PHONY: demo test lint docs figures wheel clean

demo: .venv/installed
	.venv/bin/cutlass-sk demo

test: .venv/installed
	.venv/bin/pytest

# mypy reads the package as it is installed from a wheel, where cutlass_sk.generator lies inside cutlass_sk.
lint: .venv/installed
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/clang-format --dry-run --Werror generator/include/cutlass_sk/* cutlass_sk/native/*
	rm -rf build .venv/typed
	$(PIP) --no-deps --target .venv/typed .
	MYPYPATH=.venv/typed .venv/bin/mypy -p cutlass_sk

# The documentation as a site, in build/site: a warning, such as of a link that leads nowhere, is an error.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

# The figures of the Stream-K paper; the same bytes each time.
figures: .venv/installed
	for figure in 1a 1b 2a 2b 3a 3b 3c 9; do .venv/bin/cutlass-sk schedule --figure $$figure -o docs/figures/figure-$$figure.svg; done
	.venv/bin/cutlass-sk model -o docs/figures/figure-8.svg

# A wheel in dist/ that carries the sets of three dtypes, compiled for Hopper: about 20 minutes of two cores the first time.
wheel: .venv/installed
	.venv/bin/cutlass-sk build --arch 90a --dtype float16,bfloat16,float64 -o cutlass_sk/prebuilt
	rm -rf build
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) .venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf .venv build cutlass_sk.egg-info cutlass_sk/_native*.so cutlass_sk/prebuilt/*.so cutlass_sk/prebuilt/*.json

# The package is installed editable. nvcc comes from wheels only where the machine has none that works.
.venv/installed: pyproject.toml | .venv/torch
	$(PIP) -e '.[dev]'
	.venv/bin/cutlass-sk doctor > /dev/null || $(PIP) -e '.[dev,nvcc]'
	touch $@

.venv/docs: pyproject.toml .venv/installed
	$(PIP) -e '.[docs]'
	touch $@

# torch first and by itself: which build it is, CPU or CUDA, is left to pip's configuration, or to who installed one already.
.venv/torch: | .venv/bin/python
	$(PIP) 'torch>=2.11'
	touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or later is needed; PYTHON=... chooses one" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv .venv
