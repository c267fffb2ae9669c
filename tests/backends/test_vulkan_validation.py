"""The vulkan backend under Khronos' validation layers, its order of reads and writes included."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clover_rt.spec import Kind, Pass, Precision, Segment, Wanted
from tests.backends.vulkan_devices import open_vulkan
from tests.backends.vulkan_models import NARROW, packed, pages, plan_of

LAYER = "VK_LAYER_KHRONOS_validation"
ENABLED = {
    "VK_INSTANCE_LAYERS": LAYER,
    "VK_LAYER_ENABLES": "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT",
}
ROOT = Path(__file__).resolve().parents[2]
END = "every pass has run"


def passes() -> list[Pass]:
    """Return a pass of every class, of one row, of few and of many, and what follows a verify."""

    def segments(*kinds: tuple[Kind, int, int, int], advances: Any = ()) -> Pass:
        made, row = [], 0
        for kind, slot, rows, position in kinds:
            made.append(Segment(kind, slot, row, rows, position))
            row += rows
        wanted = tuple(Wanted(i, 1) for i in range(row))
        deltas = (*pages(0), *pages(1))
        return Pass(
            tuple(made), tuple(range(row)), wanted=wanted, page_deltas=deltas, advances=advances
        )

    commit, preview, verify = Kind.COMMIT, Kind.PREVIEW, Kind.VERIFY
    return [
        segments((commit, 1, 70, 0)),
        segments((commit, 1, 1, 70)),
        segments((preview, 1, 32, 71)),
        segments((verify, 1, 8, 71)),
        segments((commit, 1, 3, 74), advances=((1, 3),)),
        segments((commit, 1, 32, 77), (preview, 1, 32, 109)),
        segments((commit, 0, 5, 0), (verify, 1, 4, 109)),
    ]


def main(wrong: str, folder: str) -> None:
    """Run the passes in both precisions; with `wrong`, less, but what the layers must tell."""
    from clover_rt_vulkan.driver import recording
    from clover_rt_vulkan.driver.vk import call, ffi, struct

    model = packed(Path(folder), NARROW)
    for precision in Precision:
        device: Any = open_vulkan()
        if wrong == "race":
            # nothing waits for anything
            recording.stages = lambda dispatches: []
        if wrong == "call":
            empty = struct("BufferCreateInfo", size=0, usage=1)
            call("vkCreateBuffer", device.driver._device, empty, ffi.NULL, ffi.new("VkBuffer*"))
            return
        plan = plan_of(model, device, precision)
        for work in passes()[: 1 if wrong else None]:
            plan.run(work)
        device.close()
    print(END)


def under_layers(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words under the layers."""
    open_vulkan().close()
    from clover_rt_vulkan.driver.vk import listed, text

    there = listed("vkEnumerateInstanceLayerProperties", "VkLayerProperties")
    if LAYER not in [text(found.layerName) for found in there]:
        pytest.fail(f"needs {LAYER}: apt-get install vulkan-validationlayers")
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | ENABLED, capture_output=True, text=True, check=False
    )


def told(wrong: str, folder: Path) -> str:
    """Return what the passes of this module say under the layers."""
    done = under_layers(f"tests.backends.{Path(__file__).stem}", wrong, str(folder))
    return done.stdout + done.stderr


@pytest.mark.full
def test_the_layers_have_nothing_to_say_of_a_golden_run() -> None:
    file = str(Path(__file__).with_name("test_vulkan_conformance.py"))
    done = under_layers("pytest", file, "-k", "TestAGoldenRun", "-s")
    assert done.returncode == 0, done.stdout
    assert "Validation" not in done.stdout + done.stderr


@pytest.mark.full
def test_the_layers_have_nothing_to_say_of_passes_of_every_class(tmp_path: Path) -> None:
    assert told("", tmp_path).splitlines() == [END]


@pytest.mark.full
@pytest.mark.parametrize(
    ("wrong", "name"), [("call", "VUID-VkBufferCreateInfo-size-00912"), ("race", "SYNC-HAZARD")]
)
def test_what_is_wrong_is_told(wrong: str, name: str, tmp_path: Path) -> None:
    assert name in told(wrong, tmp_path)


if __name__ == "__main__":
    main(*sys.argv[1:])
