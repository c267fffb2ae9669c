"""docs/errors.md is what the code raises, and each failure has a code of its own."""

from __future__ import annotations

import re
import runpy
from collections import defaultdict
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def reference():
    return runpy.run_path(str(DOCS / "errors_reference.py"))


@pytest.fixture(scope="module")
def by_code(reference):
    found = defaultdict(list)
    for site in reference["sites"]():
        found[site.code].append(site)
    return found


def test_the_page_is_up_to_date(reference):
    assert (DOCS / "errors.md").read_text(encoding="utf-8") == reference["page"](), (
        "run: python docs/errors_reference.py"
    )


def test_every_error_is_raised_with_a_code(reference):
    assert reference["unnamed"]() == []


def test_a_code_stands_for_one_failure(by_code):
    mixed = {c: [(s.file, s.line) for s in g] for c, g in by_code.items() if not is_one(g)}
    assert mixed == {}


def is_one(group):
    """One class; written out twice, the same account of what could not be done."""
    written = {s.what for s in group if not s.helper}
    return len({s.kind for s in group if s.kind}) <= 1 and len(written) <= 1


def test_codes_are_of_the_documented_groups(by_code, reference):
    for code in by_code:
        assert re.fullmatch(r"CRT-\d{4}", code)
        assert code[4] in reference["GROUPS"]


def test_every_error_says_what_was_found_and_what_to_do(by_code):
    assert [c for c, g in by_code.items() if not all(s.what and s.found and s.fix for s in g)] == []


def test_the_page_names_codes_that_docstrings_promise(by_code):
    root = DOCS.parent / "clover_rt"
    promised = {
        code
        for path in root.rglob("*.py")
        if "doctor" not in path.parts
        for code in re.findall(r"CRT-\d{4}", path.read_text(encoding="utf-8"))
    }
    listed = set(re.findall(r"CRT-\d{4}", (DOCS / "errors.md").read_text(encoding="utf-8")))
    assert promised <= listed
