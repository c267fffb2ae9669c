"""Tuning tables: tile sizes as data, read when kernels are bound, refused where they are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clover_rt.errors import BadInput
from clover_rt.spec import Format, Precision, Signature
from clover_rt_cuda import tuning
from clover_rt_cuda.ahead import TARGETS, Recorder, hot, launches
from clover_rt_cuda.kernels.linear import row_tile, rows_tile

ARCH = "sm_90"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's folder of tables, empty; the package has none either."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(tuning, "PACKAGED", tmp_path / "packaged")
    for made in (tuning.user_folder(), tuning.PACKAGED):
        made.mkdir(parents=True)
    return tuning.user_folder()


def write(folder: Path, arch: str = ARCH, tiles: Any = None, **head: Any) -> Path:
    path = folder / f"{arch}.json"
    path.write_text(json.dumps({"format": 1, "arch": arch, "tiles": tiles or {}} | head))
    return path


def of(op: str, rows: int, precision: Precision = Precision.FAST) -> Signature:
    return next(s for s in hot(rows, "q4-64", precision) if s.op == op)


def test_without_a_table_the_kernels_own_tiles_are_used(folder: Path) -> None:
    table = tuning.Tuning.of(ARCH)
    sig = of("moe", 32)
    assert table.source is None
    assert table.tile("rows", sig, rows_tile(sig)) == rows_tile(sig)
    assert table.tile("row", sig, row_tile(2048)) == row_tile(2048)


def test_the_users_table_goes_before_the_packages(folder: Path) -> None:
    packaged = write(tuning.PACKAGED, tiles={"rows": [{"set": {"BN": 32}}]})
    assert tuning.Tuning.of(ARCH).source == packaged
    own = write(folder, tiles={"rows": [{"set": {"BN": 128}}]})
    assert tuning.Tuning.of(ARCH).source == own
    assert tuning.Tuning.of("sm_80").source is None


def test_a_card_without_a_table_takes_that_of_a_related_one(folder: Path) -> None:
    packaged = write(tuning.PACKAGED, "sm_120")
    assert tuning.Tuning.of("sm_89").source == packaged
    related = write(folder, "sm_120")
    assert tuning.Tuning.of("sm_89").source == related
    own = write(folder, "sm_89")
    assert tuning.Tuning.of("sm_89").source == own


def test_related_cards_have_tables_in_the_package() -> None:
    for arch, other in tuning.RELATED.items():
        assert not (tuning.PACKAGED / f"{arch}.json").exists()
        assert tuning.Tuning.of(arch).source == tuning.PACKAGED / f"{other}.json"


def test_the_first_entry_that_holds_is_used(folder: Path) -> None:
    listed = [
        {"most_rows": 16, "set": {"BN": 16}},
        {"precision": "exact", "set": {"BN": 32}},
        {"set": {"BN": 128, "num_warps": 8}},
    ]
    write(folder, tiles={"rows": listed})
    table = tuning.Tuning.of(ARCH)
    found = [
        table.tile("rows", of("moe", rows, precision), {"BM": 16, "BN": 64, "BK": 64})
        for rows, precision in (
            (16, Precision.EXACT),
            (32, Precision.EXACT),
            (32, Precision.FAST),
        )
    ]
    assert found == [
        {"BM": 16, "BN": 16, "BK": 64},
        {"BM": 16, "BN": 32, "BK": 64},
        {"BM": 16, "BN": 128, "BK": 64, "num_warps": 8},
    ]


def test_an_entry_may_be_for_a_format_of_the_largest_weight(folder: Path) -> None:
    """Layers of q4 have small weights in q8 or bf16 besides."""
    write(folder, tiles={"pairs": [{"weights": "q8", "set": {"BN": 32}}, {"set": {"BN": 128}}]})
    table = tuning.Tuning.of(ARCH)
    q4 = of("moe", 32)
    q8 = next(s for s in hot(32, "q8", Precision.FAST) if s.op == "moe")
    assert table.tile("pairs", q8, {}) == {"BN": 32}
    assert table.tile("pairs", q4, {}) == {"BN": 128}
    mixed = tuple((n, Format.Q8 if n.startswith("shared") else f, g) for n, f, g in q4.formats)
    assert table.tile("pairs", replace(q4, formats=mixed), {}) == {"BN": 128}


def test_every_kind_of_tile_reaches_the_kernels(folder: Path) -> None:
    """The tiles, and the grids that go with them: columns, or rows, over the tile's."""
    tuned = {
        "row": ({"BN": 16}, "moe", 1, "moe_hidden_row", 0, 512 // 16),
        "rows": ({"BN": 32}, "gdn", 32, "project_kernel", 0, (8192 + 4096 + 32 + 32) // 32),
        "pairs": ({"BN": 32}, "moe", 32, "moe_hidden_rows", 0, 512 // 32),
        "head": ({"BV": 64}, "confidence_topk", 32, "logits_kernel", 1, 248320 // 64),
        # a segment may end in a tile that is not full
        "attend": ({"BQ": 32}, "attention", 4, "attend_kernel", 0, 4 + 4 * 8 // 32),
        "attend_rows": ({"BQ": 64}, "attention", 32, "attend_kernel", 0, 32 + 32 * 8 // 64),
    }
    assert set(tuned) == set(tuning.TILES)
    for kind, (numbers, op, rows, name, axis, programs) in tuned.items():
        assert launch_of(op, rows, name).grid[axis] != programs
        write(folder, Recorder().arch, {kind: [{"set": numbers}]})
        launch = launch_of(op, rows, name)
        assert numbers.items() <= launch.meta.items(), kind
        assert launch.grid[axis] == programs, kind
        write(folder, Recorder().arch)


def launch_of(op: str, rows: int, name: str) -> Any:
    return next(n for n in launches(of(op, rows)) if n.kernel.__name__ == name)


@pytest.mark.parametrize(
    ("rows", "heads", "queries"), [(1, 4, 16), (1, 64, 32), (16, 16, 128)], ids=str
)
def test_a_tile_of_attention_has_whole_rows_and_no_more_than_there_are(
    folder: Path, rows: int, heads: int, queries: int
) -> None:
    """A product takes 16 queries at least; a row has half of the heads, since two share keys."""
    numbers = {kind: [{"set": {"BQ": 256}}] for kind in ("attend", "attend_rows")}
    write(folder, Recorder().arch, numbers)
    sig = of("attention", rows)
    sig = replace(sig, axes=tuple(sorted({**dict(sig.axes), "H": heads}.items())))
    (meta,) = {n.meta["BQ"] for n in launches(sig) if n.kernel.__name__ == "attend_kernel"}
    assert meta == queries


@pytest.mark.parametrize(
    ("content", "code", "told"),
    [
        ("{", "CRT-1095", "cannot be read"),
        ("[]", "CRT-1096", "it says []"),
        ('{"format": 2, "arch": "sm_90"}', "CRT-1096", "'format': 2"),
        ('{"format": 1, "arch": "sm_80"}', "CRT-1096", "'arch': 'sm_80'"),
        ('{"format": 1, "arch": "sm_90", "tiles": []}', "CRT-1097", "an object"),
        ('{"format": 1, "arch": "sm_90", "tiles": {"cols": []}}', "CRT-1097", "'cols'"),
        ('{"format": 1, "arch": "sm_90", "tiles": {"rows": {}}}', "CRT-1097", "a list"),
    ],
    ids=["no JSON", "no object", "format", "arch", "tiles", "kind", "no list"],
)
def test_a_wrong_file_is_refused(folder: Path, content: str, code: str, told: str) -> None:
    path = folder / f"{ARCH}.json"
    path.write_text(content)
    with pytest.raises(BadInput) as caught:
        tuning.Tuning.of(ARCH)
    assert caught.value.code == code
    assert str(path) in caught.value.what and told in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ({"set": {"BM": 16, "TYPE": 1}}, "tiles.rows[0].set"),
        ({"weights": "q5", "set": {}}, "tiles.rows[0].weights"),
        ({"set": {"BN": 48}}, "tiles.rows[0].set.BN"),
        ({"set": {"BN": 512}}, "tiles.rows[0].set.BN"),
        ({"set": {"BN": "64"}}, "tiles.rows[0].set.BN"),
        ({"set": {"BN": True}}, "tiles.rows[0].set.BN"),
        ({"set": {"num_warps": 64}}, "tiles.rows[0].set.num_warps"),
        ({"set": {}, "least_rows": 4}, "tiles.rows[0]"),
        ({"set": {}, "most_rows": 0}, "tiles.rows[0].most_rows"),
        ({"set": {}, "precision": "quick"}, "tiles.rows[0].precision"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_wrong_entry_is_refused_by_its_place(folder: Path, entry: Any, where: str) -> None:
    write(folder, tiles={"rows": [entry]})
    with pytest.raises(BadInput) as caught:
        tuning.Tuning.of(ARCH)
    assert caught.value.code == "CRT-1097"
    assert caught.value.what.startswith(f"{where} of the tuning table ")


def test_a_wrong_table_is_told_when_a_kernel_is_bound(folder: Path) -> None:
    write(folder, Recorder().arch, {"rows": [{"set": {"BN": 3}}]})
    with pytest.raises(BadInput, match="CRT-1097"):
        launches(of("gdn", 32))


def test_the_tables_of_the_package_can_be_read_and_are_of_targets_compiled_ahead() -> None:
    paths = sorted(tuning.PACKAGED.glob("*.json"))
    assert paths
    for path in paths:
        assert path.stem in TARGETS
        assert tuning.read(path, path.stem).source == path
