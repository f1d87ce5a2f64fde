"""Corpora are the same numbers everywhere, and bad files get one clear error."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
from command_line import CommandLine

from cutlass_sk.ensemble import cli, corpus
from cutlass_sk.ensemble.corpus import CorpusError, Problem, Spread

DIGESTS = {
    "paper": "18a5ef8386f8ec05342b416e70278b6ff65ec4ec2c4e37576ee0fb84820cee9e",
    "paper/aligned": "18a5ef8386f8ec05342b416e70278b6ff65ec4ec2c4e37576ee0fb84820cee9e",
    "paper/raw": "618c1a66f249248d542fe75ec7c1991fefdf3a2d816761fad05cc5ed81116731",
    "real": "960c27980fc1929f3f1f7c0269b6f87268423c3b825285a9e988db60135bfd88",
    "sm": "f2a13656faf1ff99a22de84c117f31bf545aef259bbdef839b07e9fca86aaf8d",
    "waves": "49e146e37dc6ca85846992c706918e42249f5664cf70da5957b5d1513268910a",
    "strong_scaling": "9289be6bdbd6915400c6cac95b56c19e76375e3a584fb7171c046771872ed032",
}


@pytest.mark.parametrize("name", corpus.NAMES)
def test_named_corpora_are_reproducible_bit_for_bit(name: str) -> None:
    assert corpus.by_name(name).sha256 == DIGESTS[name]


def test_a_digest_by_hand() -> None:
    two = corpus.Corpus("two", (Problem(1, 2, 3, name="not in it"), Problem(40, 50, 60)))
    assert two.sha256 == hashlib.sha256(b"1,2,3\n40,50,60").hexdigest()
    assert corpus.Corpus("turned", two.problems[::-1]).sha256 != two.sha256


@pytest.mark.parametrize("kind", ["aligned", "raw"])
def test_the_paper_s_corpus_is_log_uniform(kind: str) -> None:
    whole = corpus.paper(kind)  # type: ignore[arg-type]
    assert len(whole) == 32824
    assert corpus.paper(kind, count=100).problems == whole.problems[:100]  # type: ignore[arg-type]
    assert corpus.paper(kind, seed=1).sha256 != whole.sha256  # type: ignore[arg-type]
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


def test_sweeps_of_other_tiles_and_gpus() -> None:
    assert {(p.m // 64) * (p.n // 32) for p in corpus.by_name("strong_scaling", (64, 32), 4)} == {1, 2, 3, 4}
    assert corpus.by_name("sm", (64, 32), 4).sha256 == corpus.sm((64, 32), 4).sha256 != DIGESTS["sm"]
    for tile, sms in (((0, 128), 132), ((128, 128), 0)):
        with pytest.raises(CorpusError, match=f"tile={tile[0]}x{tile[1]}, sms={sms}: give a tile of 1x1 or more"):
            corpus.waves(tile, sms)


def test_sweeps_hold_nothing_that_could_not_be_read_back() -> None:
    for make in (corpus.waves, corpus.strong_scaling, corpus.sm):
        with pytest.raises(
            CorpusError, match="more than the 274,877,906,944 that a GPU may hold; take a smaller tile or fewer SMs"
        ):
            make(sms=100_000_007)
    with pytest.raises(CorpusError, match="is larger than 2147483647, the most a kernel takes"):
        corpus.waves((2**31, 1), 4)


def test_shards_are_apart_and_complete() -> None:
    whole = corpus.paper(count=1001)
    shards = [whole.shard(index, 4) for index in range(4)]
    assert sorted(map(id, (p for shard in shards for p in shard))) == sorted(map(id, whole))
    with pytest.raises(CorpusError, match="shard 4 of 4"):
        whole.shard(4, 4)


def test_summary_by_hand() -> None:
    # 2 x 3 tiles of 128 x 128 on 4 SMs; one tile, whose matrices have 10^4 elements each; and one with hardly any work, a k of 1.
    three = corpus.Corpus("three", (Problem(256, 384, 64), Problem(100, 100, 100, count=10), Problem(8, 8, 1)))
    summary = corpus.summarize(three, sms=4)
    large, middling, small = 2 * 256 * 384 * 64, 2 * 100**3, 2 * 8 * 8
    assert (summary.count, summary.total_flop) == (3, large + 10 * middling + small)
    assert summary.flop == Spread(small, (small + middling) / 2, middling, (middling + large) / 2, large)
    assert summary.flop_geomean == pytest.approx((large * middling * small) ** (1 / 3))
    assert summary.intensity.most == large / (2 * (256 * 64 + 64 * 384 + 256 * 384))
    assert (summary.intensity.median, summary.intensity.least) == (middling / (2 * 3e4), small / (2 * (8 + 8 + 64)))
    assert summary.octaves == {0: 1, 32: 2}  # 0.8, 33.3 and 45.2 FLOP a byte
    assert (summary.tiles.least, summary.tiles.most) == (1, 6)
    assert (summary.waves.least, summary.waves.most) == (0.25, 1.5)
    assert (summary.wave_use.least, summary.wave_use.most) == (0.25, 0.75)  # 6 tiles in two waves of 4
    assert summary.below_a_wave == pytest.approx(2 / 3) and summary.aligned == pytest.approx(1 / 3)
    assert corpus.summarize(three, element_bytes=8).intensity.median == middling / (8 * 3e4)
    with pytest.raises(CorpusError, match="empty holds no problems"):
        corpus.summarize(corpus.Corpus("empty", ()))


def test_quartiles_by_hand() -> None:
    assert Spread.of([5, 1, 4, 2, 3]) == Spread(1, 2, 3, 4, 5)
    assert Spread.of([7]) == Spread(7, 7, 7, 7, 7)


def test_a_csv_of_one_s_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    text = 'name, k,n , m,comment,dtype,count\n"first, of two",3,2,1,ignored,float16,7\n,30, 20,10,,,\n'
    path.write_text(text, encoding="utf-8-sig")
    own = corpus.by_name(str(path))
    assert own.name == "mine"
    assert own.problems == (Problem(1, 2, 3, "first, of two", dtype="float16", count=7), Problem(10, 20, 30))


@pytest.mark.parametrize("name", ["real", "sm"])
def test_what_is_written_is_read_again(name: str, tmp_path: Path) -> None:
    whole = corpus.by_name(name)
    path = tmp_path / "written.csv"
    path.write_text(corpus.to_csv(whole))
    assert corpus.from_csv(path).problems == whole.problems


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m,n\n1,2\n", "line 1: no column k among 'm', 'n'; the first line must name m, n and k"),
        ("m;n;k\n1;2;3\n", "line 1: no column m, n, k among 'm;n;k'; the first line must name m, n and k, with commas"),
        ("m,n,k,m\n1,2,3,4\n", "line 1: column m is there twice"),
        ("", "is empty; its first line must name the columns"),
        ("m,n,k\n", "holds no problems"),
        ("m,n,k\n1,2,3\n4,-5,6\n", "line 3: n=-5 must be 1 or more"),
        ("m,n,k\n0,2,3\n", "line 2: m=0 must be 1 or more; leave problems without work out"),
        ("m,n,k\n1,2,3.5\n", "line 2: k='3.5' is no whole number; write digits alone"),
        ("m,n,k\n1,2,1e3\n", "line 2: k='1e3' is no whole number"),
        ("m,n,k\n1,1_000,3\n", "line 2: n='1_000' is no whole number"),
        ("m,n,k\n1,2\n", "line 2: k is missing"),
        ("m,n,k\n1,2,3\n1,2,3,4,5\n", "line 3: '4', '5' beyond the last column"),
        ("m,n,k\n1,,2\n", "line 2: n is missing; give a whole number"),
        ("m,n,k\n2147483648,1,1\n", "line 2: m=2147483648 is larger than 2147483647, the most a kernel takes"),
        ("m,n,k\n1,1," + "9" * 5000 + "\n", "is larger than 2147483647"),
        ("m,n,k\n1000000,1000000,8\n", "line 2: m=1000000, n=1000000, k=8: c[1000000, 1000000] has 1,000,000,000,000 elements"),
        ("m,n,k\n1,600000,600000\n", "b[600000, 600000] has 360,000,000,000 elements"),
        ("m,n,k,count\n1,2,3,0\n", "line 2: count=0 must be 1 or more"),
        ("m,n,k,layout\n1,2,3,tx\n", "line 2: layout='tx' is not one of tt, tn, nt, nn, any"),
        ('m,n,k,name\n1,2,3,"' + "x" * 200_000 + '"\n', "is no CSV: field larger than field limit"),
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


# The command.


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of ``cutlass-sk corpus``."""
    return CommandLine(capsys, monkeypatch)("corpus", *arguments)


def test_the_command_names_sums_up_lists_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text, _ = run(monkeypatch, capsys)
    assert status == 0 and all(name in text for name in corpus.NAMES)
    status, text, _ = run(monkeypatch, capsys, "paper/raw")
    assert status == 0 and "32,824" in text and DIGESTS["paper/raw"] in text
    path = tmp_path / "out.csv"
    status, text, errors = run(monkeypatch, capsys, "waves", "--sms", "4", "--tile", "64x32", "--list", "--csv", str(path))
    assert status == 0 and "problems written" in errors
    assert text == path.read_text() == corpus.to_csv(corpus.waves((64, 32), 4))
    status, text, _ = run(
        monkeypatch, capsys, str(path), "--summary", "--json", "--dtype", "float64", "--sms", "4", "--tile", "64x32"
    )
    summary = json.loads(text)
    assert status == 0 and summary["sha256"] == corpus.waves((64, 32), 4).sha256
    assert summary["intensity"]["median"] == corpus.summarize(corpus.waves((64, 32), 4), element_bytes=8).intensity.median
    assert (summary["waves"]["least"], summary["waves"]["most"]) == (0.5, 13 / 4)


def test_nothing_that_was_asked_for_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    whole = corpus.waves(sms=4)
    status, text, _ = run(monkeypatch, capsys, "waves", "--sms", "4", "--list", "--json")
    assert status == 0 and tuple(Problem(**entry) for entry in json.loads(text)) == whole.problems
    assert cli_output(monkeypatch, capsys, "paper/raw", "40").count(DIGESTS["paper/raw"]) == 1


def cli_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, columns: str) -> str:
    """What ``cutlass-sk corpus`` prints on a terminal so wide."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "argv", ["cutlass-sk", "corpus", name])
    with pytest.raises(SystemExit):
        cli.main()
    return capsys.readouterr().out


def test_the_command_s_errors_are_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("m,n,k\n1,2,-3\n")
    for arguments, message in (
        (("papers",), "corpus 'papers' is not known; there are paper,"),
        ((str(bad),), f"{bad}, line 2: k=-3 must be 1 or more"),
        ((str(tmp_path / "absent.csv"),), "absent.csv cannot be read"),
        (("sm", "--tile", "128"), "'128' must be 2 whole numbers"),
        (("sm", "--tile", "0x128"), "tile=0x128, sms=132: give a tile of 1x1"),
        (("paper", "--tile", "0x128"), "tile=0x128"),
        (("sm", "--sms", "0"), "--sms"),
        (("sm", "--csv", "/dev/null/out.csv"), "/dev/null/out.csv cannot be written: /dev/null is no folder"),
        (("--csv", str(tmp_path / "b.csv")), "NAME is needed"),
        (("--list",), "NAME is needed"),
        (("--summary", "--json"), "NAME is needed"),
        (("waves", "--list", "--summary"), "--list prints problems alone"),
        (("waves", "--sms", "100000007", "--csv", str(tmp_path / "w.csv")), "that a GPU may hold"),
    ):
        status, _, errors = run(monkeypatch, capsys, *arguments)
        assert status == 2 and message in " ".join(errors.split()) and "Traceback" not in errors, arguments
