"""Compile every shader for AMD cards that are not here, and write what each takes to radv.json.

    python check_radv.py --mesa FOLDER            every shader for every card
    python check_radv.py --mesa FOLDER attend     the shaders named, printed and not written

Mesa's AMD driver compiles without a card if it is told a family (RADV_FORCE_FAMILY). FOLDER has its
package of Debian's bookworm-backports, unpacked beside what is installed:

    apt-get download -t bookworm-backports mesa-vulkan-drivers libdrm2 libdrm-amdgpu1
    for deb in *.deb; do dpkg -x "$deb" FOLDER; done

Sizes are those of the 35B release, which are the defaults of the constants; weights, rows of a
group and the type of the cache are chosen in each way. A line of the table is [vector registers,
scalar registers, spilled ones of each, bytes of local memory, of scratch, waves that fit a SIMD].
Spilled vector registers go to scratch, which is memory; scalar ones to lanes of vector registers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SHADERS = Path(__file__).resolve().parent
PACKAGE = SHADERS.parent
TABLE = SHADERS / "radv.json"
FAMILIES = ("navi31", "gfx1151", "gfx1201")
MARK = "shader at hand: "
FIELDS = {
    "VGPRs": r"VGPRs: (\d+)",
    "SGPRs": r"SGPRs: (\d+)",
    "spilled VGPRs": r"Spilled VGPRs: (\d+)",
    "spilled SGPRs": r"Spilled SGPRs: (\d+)",
    "shared": r"LDS size: (\d+)",
    "scratch": r"Scratch size: (\d+)",
    "waves": r"(?:Subgroups|Max Waves|Occupancy)[^:]*: (\d+)",
}
WEIGHTS = {"bf16": (2, 32, 0), "q8": (3, 32, 0), "q4": (4, 64, 0), "q4z": (4, 64, 1)}
# rows of a group where they are not 1 and 4
ROWS = dict.fromkeys(("moe_hidden_few", "moe_down_few"), (1, 4, 8))
# work-items of a group where they are chosen by the pass
ITEMS = {"attend_many": (512, 1024)}
KV = {"kv-f32": {"KV_BF16": 0}, "kv-bf16": {"KV_BF16": 1}}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="shaders; none: all, and radv.json is written")
    parser.add_argument("--mesa", type=Path, required=True, help="folder of unpacked packages")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        compile_all(arguments.names)
        return 0
    table = {family: ask(arguments.mesa, family, arguments.names) for family in FAMILIES}
    drivers = {told.pop("driver") for told in table.values()}
    for family, told in table.items():
        for form, numbers in told.items():
            if arguments.names or any(numbers[2:4]):
                print(family, form, *(f"{k} {v}" for k, v in zip(FIELDS, numbers, strict=True)))
    if not arguments.names:
        head = {"driver": drivers.pop(), "fields": list(FIELDS), "sha256": hashes()}
        lines = [
            f"  {json.dumps(family)}: {{\n" + ",\n".join(_lines(told)) + "\n  }"
            for family, told in table.items()
        ]
        text = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items())
        TABLE.write_text("{\n" + text + ',\n "cards": {\n' + ",\n".join(lines) + "\n }\n}\n")
    return 0


def forms(names: list[str]) -> Iterator[tuple[str, str, dict[str, int]]]:
    """Yield (label, shader, constants) of each form that the release takes."""
    for shader, entry in index().items():
        if names and shader not in names:
            continue
        weights = sorted({c.removesuffix("_FORMAT") for c in entry["constants"] if "_FORMAT" in c})
        choices: list[tuple[str, dict[str, int]]] = [("", {})]
        if weights:
            choices = [
                (label, {f"{w}_{key}": n for w in weights for key, n in _weight(kind).items()})
                for label, kind in WEIGHTS.items()
                if label != "bf16" or not shader.endswith("_int8")
            ]
        if "ROWS" in entry["constants"] and weights:
            choices = [
                (f"{label},rows={n}", {**given, "ROWS": n})
                for label, given in choices
                for n in ROWS.get(shader, (1, 4))
            ]
        if "KV_BF16" in entry["constants"]:
            choices = [(label, given) for label, given in KV.items()]
        if shader in ITEMS:
            choices = [
                (f"{label},items={n}", {**given, "ITEMS": n})
                for label, given in choices
                for n in ITEMS[shader]
            ]
        for label, given in choices:
            yield f"{shader}[{label}]" if label else shader, shader, given


def index() -> dict[str, Any]:
    entries: dict[str, Any] = json.loads((PACKAGE / "spirv" / "index.json").read_text())["shaders"]
    return entries


def hashes() -> dict[str, str]:
    return {name: entry["sha256"] for name, entry in index().items()}


def ask(mesa: Path, family: str, names: list[str]) -> dict[str, Any]:
    """Return {form: numbers} of a card, and the driver's version, from a process of its own."""
    library = next(mesa.rglob("libvulkan_radeon.so"))
    with tempfile.TemporaryDirectory() as folder:
        driver = Path(folder) / "radv.json"
        told = {"library_path": str(library), "api_version": "1.4.0"}
        driver.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": told}))
        environment = {
            **os.environ,
            "VK_DRIVER_FILES": str(driver),
            "RADV_FORCE_FAMILY": family,
            "RADV_DEBUG": "shaderstats,nocache",
            "LD_LIBRARY_PATH": str(library.parent),
            "XDG_CACHE_HOME": folder,
            "PYTHONPATH": str(PACKAGE.parent),
        }
        command = [sys.executable, __file__, "--mesa", str(mesa), "--child", *names]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{family}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return {"driver": done.stdout.strip(), **parsed(done.stderr)}


def parsed(text: str) -> dict[str, list[int]]:
    """Return the numbers of each form out of what the driver prints."""
    out = {}
    for part in text.split(MARK)[1:]:
        label, _, rest = part.partition("\n")
        found = [re.findall(rf"^{pattern}", rest, re.MULTILINE) for pattern in FIELDS.values()]
        assert all(found[:5]), f"{label}: no statistics in\n{rest[:2000]}"
        out[label] = [sum(int(n) for n in numbers) for numbers in found]
    return out


def compile_all(names: list[str]) -> None:
    """Compile each form on the first device; the driver prints its statistics."""
    from vulkan import ffi

    from clover_rt_vulkan.driver import Shape, cards
    from clover_rt_vulkan.driver.pipelines import Pipelines
    from clover_rt_vulkan.driver.vk import made, struct

    with cards.instance() as instance:
        card = cards.cards(instance)[0]
        print(card.driver)
        queue = struct(
            "DeviceQueueCreateInfo",
            queueFamilyIndex=card.family,
            queueCount=1,
            pQueuePriorities=ffi.new("float[]", [1.0]),
        )
        features = cards.feature_structs("int8_dot" in card.features)
        for kind, field in cards.FEATURES.values():
            setattr(features[kind], field, 1)
        info = struct(
            "DeviceCreateInfo",
            pNext=next(reversed(features.values())),
            queueCreateInfoCount=1,
            pQueueCreateInfos=[queue],
        )
        device = made("vkCreateDevice", card.handle, info)
        pipelines = Pipelines(device, "radv")
        entries = index()
        for label, name, constants in forms(names):
            entry = entries[name]
            ids = {entry["constants"][key]: n for key, n in constants.items()}
            shape = Shape(len(entry["buffers"]), 4 * len(entry["push"]))
            print(f"{MARK}{label}", file=sys.stderr, flush=True)
            pipelines.get((PACKAGE / "spirv" / f"{name}.spv").read_bytes(), shape, ids)


def _weight(kind: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(("FORMAT", "GROUP", "ZERO"), kind, strict=True))


def _lines(told: Mapping[str, list[int]]) -> list[str]:
    return [f"   {json.dumps(form)}: {json.dumps(numbers)}" for form, numbers in told.items()]


if __name__ == "__main__":
    sys.exit(main())
