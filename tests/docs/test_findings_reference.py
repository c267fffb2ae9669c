"""docs/findings.md is what the table of findings says, and every link of doctor leads into it."""

from __future__ import annotations

import runpy
from pathlib import Path

from clover_rt.doctor.findings import CODES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "findings.md"


def test_the_page_is_up_to_date():
    page = runpy.run_path(str(ROOT / "docs" / "findings_reference.py"))["page"]()
    assert PAGE.read_text(encoding="utf-8") == page, "run: python docs/findings_reference.py"


def test_every_link_leads_to_a_heading():
    headings = {
        line.removeprefix("## ").lower()
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("## ")
    }
    for code in CODES.values():
        path, _, anchor = code.link.partition("#")
        assert (ROOT / path) == PAGE and anchor in headings, code.link


def test_every_code_is_made_somewhere_and_every_made_code_is_in_the_table():
    sources = (ROOT / "clover_rt" / "doctor").glob("*.py")
    text = "".join(p.read_text(encoding="utf-8") for p in sources if p.name != "findings.py")
    for code in CODES:
        assert f'"{code}"' in text, f"{code} is never made"
