"""docs/plugins.md works from nothing when it is followed to the letter, and is complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from clover_rt import backend, errors
from clover_rt.backend import API, HostDevice
from clover_rt.errors import OutOfMemory
from clover_rt.ops import OPS
from clover_rt.plugins import LOAD, STRICT
from clover_rt.spec import Precision
from clover_rt_conformance.harness import run_case
from tests.docs.walk import FreshWalk, Walk, blocks, section
from tests.toy import ToyDevice
from tests.unit.plan_bench import assert_near_picks, bind_toy, commit, host, native

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "plugin"
TUTORIAL = section(PAGE, "From nothing")


def test_following_the_page_in_a_fresh_environment_gives_a_backend_which_is_the_example(tmp_path):
    reader = FreshWalk(tmp_path)
    assert reader.follow(TUTORIAL) == len(blocks(TUTORIAL)) >= 10
    assert "passed" in reader.output
    written = files(tmp_path / "clover-rt-sketch")
    assert written.keys() == files(EXAMPLE).keys()
    assert written == files(EXAMPLE)


def files(folder):
    """Return {path: text} of a package, without what tools leave in it."""
    found = [p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc"]
    return {str(p.relative_to(folder)): p.read_text() for p in found if ".pytest" not in str(p)}


def test_the_interesting_part_of_the_example_is_at_most_sixty_lines():
    (block,) = [b for b in blocks(TUTORIAL) if b.file]
    assert len(block.text.splitlines()) <= 60


def test_the_kernel_by_hand_keeps_its_contract():
    (block,) = [b for b in blocks(section(PAGE, "What to implement")) if b.kind == "python"]
    names: dict = {}
    exec(compile(block.text, "plugins.md", "exec"), names)

    class Device(HostDevice):
        name = "page"

    device = Device()
    device.kernels = {"rms_norm": names["RmsNorm"](device)}
    cases = list(OPS["rms_norm"].cases())
    assert cases
    for case in cases:
        assert run_case(device, OPS["rms_norm"], case, Precision.EXACT) == [], case.id


def test_the_device_with_memory_of_its_own_runs_its_kernel_and_the_model():
    (block,) = [b for b in blocks(section(PAGE, "A device with memory of its own"))]
    names: dict = {}
    exec(compile(block.text, "plugins.md", "exec"), names)
    device = names["Card"]()
    for case in list(OPS["linear"].cases())[::5]:
        assert run_case(device, OPS["linear"], case, Precision.EXACT) == [], case.id
    plan = bind_toy(device, host())
    work = commit((5, 6, 7), wanted="all")
    assert_near_picks(plan.run(work), bind_toy(native()).run(work))
    assert "linear" in {c.op for c in plan.choices if c.how == "native"}
    device.max_binding_bytes = 5000
    with pytest.raises(OutOfMemory, match="at most 5000 bytes"):
        bind_toy(device, host()).run(work)


def test_the_command_that_prints_signatures_runs(tmp_path):
    reader = Walk(tmp_path)
    assert reader.follow(section(PAGE, "What to implement")) == 1
    assert "bind(" in reader.output


GROUPS = [
    ("begin", "kv_append", "attend", "confidence_topk"),
    ("causal_conv", "block_scan", "block_memory", "advance"),
]


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_the_groups_that_the_page_names_are_of_use_only_whole(group):
    text = " ".join(section(PAGE, "Which operations first").split())
    assert ", ".join(f"`{op}`" for op in group[:-1]) + f" and `{group[-1]}`" in text
    assert native_ops(group) == set(group)
    for op in group:
        assert native_ops([other for other in group if other != op]) == set()


def native_ops(ops):
    """Return the ops that run on a device with kernels of these, before a host with all."""
    plan = bind_toy(ToyDevice("card", ops), host())
    return {c.op for c in plan.choices if c.how == "native"}


def test_the_commands_about_finding_a_plugin_run(tmp_path):
    reader = Walk(tmp_path)
    reader.follow(TUTORIAL.split("It runs the model", 1)[0])
    assert reader.follow(section(PAGE, "Finding, and being found"))
    assert "sketch" in reader.output


@pytest.mark.parametrize("kind", [backend.Backend, backend.Device, backend.Kernel])
def test_every_member_that_an_author_can_write_is_in_the_table(kind):
    row = next(x for x in PAGE.splitlines() if x.startswith(f"| `{kind.__name__}` "))
    members = [*inspect.get_annotations(kind), *(n for n, _ in inspect.getmembers(kind))]
    public = {m for m in members if not m.startswith("_")} - {"origin"}
    named = set(re.findall(r"`(\w+)", row))
    assert public - named == set()


def test_every_typed_error_of_the_border_and_every_variable_is_on_the_page():
    told = {"Unsupported", "OutOfMemory", "DeviceLost", "CompileError", "BadInput", "PluginFailed"}
    assert all(hasattr(errors, name) for name in told)
    assert [name for name in sorted(told | {LOAD, STRICT}) if f"`{name}" not in PAGE] == []


def test_the_newest_line_of_the_changes_is_the_version_of_the_api():
    changes = section(PAGE, "Versions").split("### Changes")[1]
    first = re.search(r"^\| (\d+)\.(\d+) \|", changes, re.M)
    assert first is not None
    assert (int(first[1]), int(first[2])) == API
