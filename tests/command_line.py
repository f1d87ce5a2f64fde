"""``cutlass-sk`` called from tests; the fixture ``cutlass_sk`` in conftest.py gives one."""

from __future__ import annotations

import sys

import pytest

from cutlass_sk.ensemble import cli


class CommandLine:
    """Calls ``cutlass-sk`` in this process; gives exit status, standard output and standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setenv("TERM", "dumb")

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["cutlass-sk", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        output = self.capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, output.out, output.err
