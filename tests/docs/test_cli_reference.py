"""docs/cli.md is what the parser says."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_up_to_date():
    page = runpy.run_path(str(DOCS / "cli_reference.py"))["page"]()
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == page, (
        "run: python docs/cli_reference.py"
    )
