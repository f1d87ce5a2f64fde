"""Corpora are the same numbers everywhere, and bad files get one clear error."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cutlass_sk.ensemble import corpus
from cutlass_sk.ensemble.corpus import CorpusError, Problem


def digest(problems: corpus.Corpus) -> str:
    text = "\n".join(f"{p.m},{p.n},{p.k}" for p in problems)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize(("kind", "expected"), [("aligned", "18a5ef8386f8ec05"), ("raw", "618c1a66f249248d")])
def test_the_paper_s_corpus_is_reproducible_bit_for_bit(kind: str, expected: str) -> None:
    whole = corpus.paper(kind)  # type: ignore[arg-type]
    assert len(whole) == 32824
    assert digest(whole) == expected
    assert corpus.paper(kind, count=100).problems == whole.problems[:100]  # type: ignore[arg-type]
    assert digest(corpus.paper(kind, seed=1)) != expected  # type: ignore[arg-type]
    sizes = [size for p in whole for size in (p.m, p.n, p.k)]
    assert 128 <= min(sizes) < 136 and 8184 < max(sizes) <= 8192
    assert all(size % 8 == 0 for size in sizes) == (kind == "aligned")
    # Log-uniform: as many sizes below the geometric middle as above.
    assert abs(sum(size < 1024 for size in sizes) / len(sizes) - 0.5) < 0.01


def test_real_problems_come_with_their_sources() -> None:
    real = corpus.real()
    assert len(real) > 700
    assert len({(p.m, p.n, p.k, p.layout) for p in real}) == len(real)
    assert all(p.source and p.name for p in real)
    assert any(p.k > 10**6 for p in real) and any(p.m == 1 for p in real)


def test_waves_cross_every_boundary() -> None:
    counts = [(p.m // 128) * (p.n // 128) for p in corpus.waves(sms=132)]
    assert counts == sorted(set(counts)) and (counts[0], counts[-1]) == (66, 397)
    assert {131, 132, 133, 263, 264, 265, 395, 396, 397} <= set(counts)


def test_strong_scaling_goes_from_one_tile_to_one_wave() -> None:
    problems = corpus.strong_scaling(tile=(64, 64), sms=108)
    assert {(p.m // 64) * (p.n // 64) for p in problems} == {1, 2, 4, 8, 16, 32, 54, 64, 107, 108}
    assert {p.k for p in problems} == {1024 << step for step in range(8)}
    assert len(corpus.sm()) == len(corpus.waves()) + len(corpus.strong_scaling())


def test_shards_are_apart_and_complete() -> None:
    whole = corpus.paper(count=1001)
    shards = [whole.shard(index, 4) for index in range(4)]
    assert sorted(map(id, (p for shard in shards for p in shard))) == sorted(map(id, whole))
    with pytest.raises(CorpusError, match="shard 4 of 4"):
        whole.shard(4, 4)


def test_summary_by_hand() -> None:
    two = corpus.Corpus("two", (Problem(128, 256, 64), Problem(100, 100, 100)))
    summary = corpus.summarize(two, sms=2)
    assert summary.flop == (2e6, (2e6 + 2 * 128 * 256 * 64) / 2, 2 * 128 * 256 * 64)
    assert summary.intensity[2] == 2 * 128 * 256 * 64 / (2 * (128 * 64 + 64 * 256 + 128 * 256))
    assert summary.waves == (0.5, 0.75, 1.0)
    assert summary.aligned == 0.5
    assert "two: 2 problems" in str(summary) and "50.0%" in str(summary)


def test_a_csv_of_one_s_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("name,k,n,m,comment\nfirst,3,2,1,ignored\n,30,20,10,\n", encoding="utf-8-sig")
    own = corpus.by_name(str(path))
    assert own.name == "mine"
    assert own.problems == (Problem(1, 2, 3, "first"), Problem(10, 20, 30))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m,n\n1,2\n", "line 1: no column k; the first line must name m, n and k"),
        ("", "line 1: no column m, n, k"),
        ("m,n,k\n", "holds no problems"),
        ("m,n,k\n1,2,3\n4,-5,6\n", "line 3: n=-5 must be 1 or more"),
        ("m,n,k\n1,2,3.5\n", "line 2: k='3.5' is no whole number"),
        ("m,n,k\n1,2\n", "line 2: k=None is no whole number"),
        ("m,n,k,layout\n1,2,3,tx\n", "line 2: layout='tx' is not one of tt, tn, nt, nn, any"),
    ],
)
def test_bad_files_are_named_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(CorpusError) as caught:
        corpus.from_csv(path)
    assert str(path) in str(caught.value) and message in str(caught.value)


def test_unknown_names_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="corpus 'papers' is not known; there are paper, "):
        corpus.by_name("papers")
    with pytest.raises(CorpusError, match=r"absent.csv cannot be read"):
        corpus.by_name(str(tmp_path / "absent.csv"))
    (tmp_path / "binary.csv").write_bytes(b"m,n,k\n\xff\xfe")
    with pytest.raises(CorpusError, match="in UTF-8"):
        corpus.by_name(str(tmp_path / "binary.csv"))


@pytest.mark.parametrize("name", ["paper", "paper/raw", "real", "sm", "waves", "strong_scaling"])
def test_names_lead_to_corpora(name: str) -> None:
    assert len(corpus.by_name(name)) > 30
