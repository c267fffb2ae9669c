"""docs/show.svg is what its script makes, and needs nothing but itself."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 100_000


@pytest.fixture(scope="module")
def picture():
    return (DOCS / "show.svg").read_text(encoding="utf-8")


def test_the_recording_is_up_to_date(picture):
    assert runpy.run_path(str(DOCS / "recording.py"))["page"]() == picture, (
        "run: python docs/recording.py"
    )


def test_the_recording_is_small_and_loads_nothing(picture):
    assert len(picture.encode()) < MOST_BYTES
    assert re.findall(r"https?://[^\"]*", picture) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"url\(|@import|@font-face|<script", picture)


def test_the_recording_starts_with_masks_and_ends_with_text(picture):
    groups = ElementTree.fromstring(picture).findall(f"{SVG}g")
    masks = ["".join(group.itertext()).count("▒▒") for group in groups]
    assert masks[:2] == [0, 32]
    assert masks[-1] == 0
    # every picture has its time in the animation
    assert len(groups) == len(set(re.findall(r"@keyframes (k\d+)\{", picture)))
