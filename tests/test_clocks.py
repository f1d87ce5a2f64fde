"""Clocks and power beside a measurement: what nvidia-smi says, summed up, and nothing where it is not there."""

from __future__ import annotations

import stat
from pathlib import Path
from time import sleep

import pytest

from cutlass_sk.ensemble.clocks import Sampler, summarize


def test_lines_are_summed_up_and_others_left_out() -> None:
    text = "1980, 3201, 650.5, 50\n1500, 3201, 700, 60\n[N/A], 3201, 1, 1\n1700, 3201, 690, 5"  # the last one is cut off
    found = summarize(text + "5\n1, 2\n")
    assert found["samples"] == 3
    assert (
        found["sm_mhz"] == [1500, 1700, 1980] and found["power_w"] == [650.5, 690, 700] and found["temperature_c"] == [50, 55, 60]
    )
    assert summarize("") == summarize("No devices were found") == {}


def test_a_sampler_ends_its_process_and_does_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\necho 1980, 3201, 600, 40\nexec sleep 60\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with Sampler() as sampler:
        for _ in range(200):
            if (tmp_path / "pid").exists():
                break
            sleep(0.05)
        sleep(0.1)
    assert sampler.summary["samples"] == 1 and sampler.summary["sm_mhz"] == [1980] * 3
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    monkeypatch.setenv("PATH", "")
    with Sampler() as sampler:
        pass
    assert sampler.summary == {}
