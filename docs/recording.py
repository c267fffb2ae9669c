"""Write docs/show.svg, a recording of `run --show`: python docs/recording.py [MODEL [PROMPT]]"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.style import Style

import clover_rt
from clover_rt.api import AnyEvent, BlockEvent, PassEvent, TextEvent
from clover_rt.builtin import NAMES
from clover_rt.cli.frames import Cell, Frames, Vocabulary, wrapped

TARGET = Path(__file__).with_name("show.svg")
PROMPT = "Count from 23 to 49 by 2."

COLUMNS = 66
# units of the picture: a cell, a line, the border
CELL, LINE, BORDER = 9, 20, 14
FONT_SIZE = 15
FRAME_S, LAST_S = 0.8, 3.2
PAPER, INK = "#16191d", "#d7dae0"
COLOURS = {"green": "#7bd88f", "yellow": "#f2d06b", "red": "#f2777a"}
FAINT = "#7d838c"

Lines = list[list[Cell]]


def page(model: str = NAMES[0], prompt: str = PROMPT) -> str:
    """Return the recording of one answer as SVG, animated by its own style sheet."""
    with clover_rt.load(model) as loaded:
        tokenizer = loaded.source.tokenizer
        pictures = recorded(loaded.generate(prompt), tokenizer)
    typed = [Cell("$ ", "dim"), Cell(f'clover-rt run "{prompt}" --show')]
    return drawn([[*wrapped(typed, COLUMNS), *picture] for picture in pictures])


def recorded(events: Iterable[AnyEvent], tokenizer: Vocabulary | None) -> list[Lines]:
    """Return what is seen of a response, picture by picture; the last is its text."""
    frames = Frames(tokenizer, "utf-8")
    pictures: list[Lines] = [[]]
    text, waiting = "", ""
    for event in events:
        if isinstance(event, PassEvent):
            for frame in frames.of_pass(event):
                pictures.append([*paragraphs(text), *frame.lines(COLUMNS)])
        elif isinstance(event, TextEvent):
            waiting += event.text
        elif isinstance(event, BlockEvent):
            text, waiting = text + waiting, ""
    return [*pictures, paragraphs(text + waiting)]


def paragraphs(text: str) -> Lines:
    """Return plain text in lines."""
    cells = ([Cell(char) for char in line] for line in text.split("\n"))
    return [line for paragraph in cells for line in wrapped(paragraph, COLUMNS)]


def drawn(pictures: Sequence[Lines]) -> str:
    """Return pictures as SVG, one after the other and again from the start."""
    width = COLUMNS * CELL + 2 * BORDER
    height = max(map(len, pictures)) * LINE + 2 * BORDER
    ends = list(itertools.accumulate([FRAME_S] * (len(pictures) - 1) + [LAST_S]))
    whole = ends[-1]
    rules, groups = [], []
    for i, (picture, end) in enumerate(zip(pictures, ends, strict=True)):
        start = ends[i - 1] if i else 0.0
        before = "0%{visibility:hidden}" if i else ""
        shown = f"{100 * start / whole:.3f}%{{visibility:visible}}"
        after = f"{100 * end / whole:.3f}%{{visibility:hidden}}" if end < whole else ""
        rules.append(f"@keyframes k{i}{{{before}{shown}{after}}}")
        rules.append(f".p{i}{{animation:k{i} {whole:.1f}s step-end infinite}}")
        lines = "".join(text(line, row) for row, line in enumerate(picture))
        groups.append(f'<g class="p p{i}">{lines}</g>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            "<title>A block of masks is filled pass by pass, then its text is printed</title>",
            "<style>",
            f"text{{font:{FONT_SIZE}px ui-monospace,Menlo,Consolas,monospace;white-space:pre;"
            f"fill:{INK}}}",
            # who shows no animation, or wants none, sees the last picture
            f".p{{visibility:hidden}}.p{len(pictures) - 1}{{visibility:visible}}",
            *rules,
            "@media (prefers-reduced-motion:reduce){.p{animation:none}}",
            "</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
            *groups,
            "</svg>\n",
        ]
    )


def text(line: Sequence[Cell], row: int) -> str:
    """Return one line: a text a style, each as wide as its cells whatever the font is."""
    out, at = [], 0
    for name, cells in itertools.groupby(line, key=lambda cell: cell.style):
        piece = "".join(cell.text for cell in cells)
        style, wide = Style.parse(name), cell_len(piece)
        x, top, width = BORDER + at * CELL, BORDER + row * LINE, wide * CELL
        if style.reverse:
            size = f'width="{width}" height="{LINE}"'
            out.append(f'<rect x="{x}" y="{top}" {size} fill="{colour(style)}"/>')
        if piece.strip():
            out.append(
                f'<text x="{x}" y="{top + FONT_SIZE}" textLength="{width}" '
                f'xml:space="preserve"{attributes(style)}>{escape(piece)}</text>'
            )
        at += wide
    return "".join(out)


def colour(style: Style) -> str:
    """Return the colour of a style, "" for that of plain text."""
    if style.dim:
        return FAINT
    return COLOURS[style.color.name] if style.color else ""


def attributes(style: Style) -> str:
    """Return a style as attributes of a text."""
    fill = PAPER if style.reverse else colour(style)
    decoration = "underline" if style.underline else "line-through" if style.strike else ""
    found = {
        "style": f"fill:{fill}" if fill else "",
        "font-weight": "bold" if style.bold else "",
        "text-decoration": decoration,
    }
    return "".join(f' {name}="{value}"' for name, value in found.items() if value)


if __name__ == "__main__":
    TARGET.write_text(page(*sys.argv[1:3]), encoding="utf-8")
