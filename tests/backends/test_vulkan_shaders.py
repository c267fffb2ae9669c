"""The shaders of the Vulkan backend: they are what their sources make, and keep the rules.

Nothing here runs a shader; the suite does, on a device.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "backends" / "vulkan" / "clover_rt_vulkan"
SHADERS, SPIRV = PACKAGE / "shaders", PACKAGE / "spirv"
INDEX: dict[str, Any] = json.loads((SPIRV / "index.json").read_text())["shaders"]
NAMES = sorted(INDEX)
TABLE: dict[str, Any] = json.loads((SHADERS / "radv.json").read_text())
# what desktop cards have, whatever their age
PUSH_BYTES, SHARED_BYTES, ITEMS, BUFFERS = 128, 32 << 10, 256, 12
CARDS = ("navi31", "gfx1151", "gfx1201")
SHADER, INTEGER_DOT, PACKED_DOT = 1, 6019, 6018
SPIRV_1_3 = 0x00010300


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vulkan_shader_build", SHADERS / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_spirv_is_what_the_recorded_compiler_makes_of_the_sources(build: ModuleType) -> None:
    """Validated with spirv-val on the way; the hashes of the index are those of the files."""
    assert build.differences(build.build()) == []


def test_a_changed_source_and_a_stray_file_are_told(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build.Built({"a": b"1", "b": b"2"}, "{}")
    monkeypatch.setattr(build, "SPIRV", tmp_path)
    build.write(built)
    assert build.differences(built) == []
    (tmp_path / "a.spv").write_bytes(b"other")
    (tmp_path / "b.spv").rename(tmp_path / "stray.spv")
    assert build.differences(built) == [
        "a.spv is not what its source makes",
        "b.spv is missing",
        "stray.spv has no source",
    ]


def test_another_compiler_is_refused(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILER", "Glslang Version: 11:0.0.0")
    with pytest.raises(build.Refused, match=r"made by 'Glslang Version: 11:0\.0\.0'"):
        build.build()


@pytest.mark.parametrize("name", NAMES)
def test_a_shader_keeps_to_what_every_device_has(name: str) -> None:
    entry = INDEX[name]
    assert len(entry["buffers"]) <= BUFFERS
    assert 4 * len(entry["push"]) <= PUSH_BYTES
    assert 1 <= math.prod(entry["local_size"]) <= ITEMS


@pytest.mark.parametrize("name", NAMES)
def test_a_shader_needs_no_feature_that_the_index_does_not_tell(name: str) -> None:
    words = _words(name)
    assert words[1] == SPIRV_1_3
    capabilities = {operands[0] for op, operands in _instructions(words) if op == 17}
    optional = {"int8_dot"} if capabilities & {INTEGER_DOT, PACKED_DOT} else set()
    assert capabilities - {INTEGER_DOT, PACKED_DOT} == {SHADER}
    assert set(INDEX[name]["requires"]) == optional
    assert bool(optional) == name.endswith("_int8")


@pytest.mark.parametrize("name", NAMES)
def test_no_buffer_is_read_before_its_start(name: str) -> None:
    """Every buffer has its start among the push constants, in the order of the bindings."""
    entry = INDEX[name]
    starts = [f"{buffer}_at" for buffer in entry["buffers"]]
    assert [push for push, _ in entry["push"]][: len(starts)] == starts
    assert set(entry["writes"]) <= set(entry["buffers"])


@pytest.mark.parametrize("name", NAMES)
def test_the_length_of_a_pass_bounds_every_shader(name: str) -> None:
    """Each takes its bound from the step table, but for the one that only starts a result."""
    if name == "start_picks":
        assert INDEX[name]["buffers"] == ["picks"]
        return
    assert INDEX[name]["buffers"][0] == "params"
    source = (SHADERS / INDEX[name]["source"]).read_text()
    if '#include "tile.glsl"' in source:
        source += (SHADERS / "tile.glsl").read_text()
    assert re.search(r"table_(rows|segments|advances|wanted|page_deltas)\(\)", source)


@pytest.mark.parametrize("name", NAMES)
def test_sums_have_one_order(name: str) -> None:
    """No atomic instruction but those on integers: and, or, add."""
    atomics = {op for op, _ in _instructions(_words(name)) if 227 <= op <= 242}
    add, logic_and, logic_or = 234, 240, 241
    assert atomics <= {add, logic_and, logic_or}


def test_every_shader_is_in_the_contract() -> None:
    told = set(re.findall(r"^\| `(\w+)` \|", (SHADERS / "README.md").read_text(), re.MULTILINE))
    assert {n.removesuffix("_int8") for n in NAMES} <= told


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_lists_buffers_and_push_constants_in_order(name: str) -> None:
    if name.endswith("_int8"):
        return
    entry = INDEX[name]
    row = next(
        line.split("|")[2:6]
        for line in (SHADERS / "README.md").read_text().splitlines()
        if line.startswith(f"| `{name}` |")
    )
    buffers, push = (re.sub(r"\[[^]]*\]|\*\*", "", cell) for cell in row[:2])
    if not buffers.strip().startswith("as "):
        assert [b.strip() for b in buffers.split(",")] == entry["buffers"]
        written = set(re.findall(r"\*\*(\w+)\*\*", row[0]))
        assert written == set(entry["writes"])
        names = [n for n, _ in entry["push"]][len(entry["buffers"]) :]
        assert [p.strip() for p in push.split(",")] == names


def test_the_table_of_amd_cards_is_of_these_shaders() -> None:
    """`check_radv.py` writes it; a shader that changed needs it run again."""
    assert TABLE["sha256"] == {name: INDEX[name]["sha256"] for name in NAMES}
    assert tuple(TABLE["cards"]) == CARDS
    for forms in TABLE["cards"].values():
        assert {form.split("[")[0] for form in forms} == set(NAMES)


@pytest.mark.parametrize("card", CARDS)
def test_no_shader_spills_on_amd_cards(card: str) -> None:
    fields = TABLE["fields"]
    for form, numbers in TABLE["cards"][card].items():
        told = dict(zip(fields, numbers, strict=True))
        assert (told["spilled VGPRs"], told["spilled SGPRs"], told["scratch"]) == (0, 0, 0), form
        assert told["shared"] <= SHARED_BYTES, form


def _words(name: str) -> tuple[int, ...]:
    code = (SPIRV / f"{name}.spv").read_bytes()
    return struct.unpack(f"<{len(code) // 4}I", code)


def _instructions(words: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
    out, at = [], 5
    while at < len(words):
        count = words[at] >> 16
        out.append((words[at] & 0xFFFF, words[at + 1 : at + count]))
        at += count
    return out
