"""docs/ops.md is what the contracts say."""

from __future__ import annotations

import runpy
from pathlib import Path

from clover_rt.ops import OPS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page() -> str:
    return runpy.run_path(str(DOCS / "ops_reference.py"))["page"]()


def test_the_page_is_up_to_date():
    assert (DOCS / "ops.md").read_text(encoding="utf-8") == page(), (
        "run: python docs/ops_reference.py"
    )


def test_every_op_has_a_section_with_its_operands_and_tolerances():
    text = page()
    for name, spec in OPS.items():
        section = text.split(f"### {name}\n", 1)[1].split("\n### ", 1)[0]
        assert spec.doc.strip() in section
        for operand in spec.operands:
            assert f"| `{operand.name}` | " in section, (name, operand.name)
        for numerics, tolerance in spec.tolerance.items():
            assert f"| {numerics.value} | " in section and tolerance.why in section
