"""The table of whatever a BLAS user may bring, on the CPU, where the reference executes the plans."""

from __future__ import annotations

import pytest
from operand_table import DTYPES, alignments, table, with_plan

from cutlass_sk.ensemble.operand_cases import failure

pytestmark = pytest.mark.filterwarnings("ignore:cutlass_sk. CPU tensors")


@pytest.mark.parametrize("decomposition", ["planned", "stream_k"])
@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES[:3])
def test_whatever_is_brought_gives_the_value(dtype: str, out_dtype: str, decomposition: str) -> None:
    wrong = {}
    for name, case in table(dtype, out_dtype):
        if found := failure(with_plan(case, decomposition), "cpu"):
            wrong[name] = found
    assert not wrong


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_any_address_and_leading_dimension(dtype: str) -> None:
    wrong = {name: found for name, case in alignments(dtype, dtype, step=3) if (found := failure(case, "cpu"))}
    assert not wrong


def test_no_call_of_the_table_hides_another() -> None:
    for pair in DTYPES:
        names = [name for name, _ in (*table(*pair), *alignments(*pair))]
        assert len(set(names)) == len(names) > 700
