"""What is wrong with a checkpoint's tensors, collected into one error."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from clover_rt.errors import BadCheckpoint
from clover_rt.weights.packed import View
from clover_rt.weights.tensor_file import FORMATS

Shape = tuple[int, ...]
SHOWN = 10
ENOUGH = 10_000
"""Findings after which no more are looked for: the file is of another model."""

KINDS = {
    "missing": "CRT-1160",
    "unknown": "CRT-1161",
    "of a wrong shape": "CRT-1162",
    "of a wrong type": "CRT-1163",
}
SEVERAL = "CRT-1165"
FIXES = {
    "missing": "download the checkpoint again with all of its files",
    "unknown": "remove tensors that do not belong to the model",
    "of a wrong shape": "check that config.json and the weights are of the same model",
    "of a wrong type": f"convert those tensors to one of {', '.join(FORMATS)}",
}


class Findings:
    """Collects the tensors that do not fit a configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines: dict[str, list[str]] = {kind: [] for kind in KINDS}

    @property
    def enough(self) -> bool:
        """Is it certain by now that the tensors do not fit?"""
        return sum(map(len, self._lines.values())) >= ENOUGH

    def missing(self, name: str, shape: Shape) -> None:
        self._lines["missing"].append(f"{name} {list(shape)}")

    def unknown(self, name: str, view: View, note: str = "") -> None:
        tail = f" ({note})" if note else ""
        where = f"{view.dtype} {list(view.shape)} in {view.file.path.name}"
        self._lines["unknown"].append(f"{name} {where}{tail}")

    def wrong_shape(self, name: str, view: View, accepted: tuple[Shape, ...]) -> None:
        wanted = " or ".join(str(list(shape)) for shape in accepted)
        text = f"{name} in {view.file.path.name} has {list(view.shape)}, wanted {wanted}"
        self._lines["of a wrong shape"].append(text)

    def wrong_type(self, name: str, view: View) -> None:
        text = f"{name} in {view.file.path.name} is {view.dtype}, wanted {', '.join(FORMATS)}"
        self._lines["of a wrong type"].append(text)

    def finish(self, names: Iterable[str], prefixes: tuple[str, ...]) -> None:
        """Raise one BadCheckpoint with the counts and the first of each kind, if there are any.

        names and prefixes serve the hint where a file has none of the known prefixes.
        """
        kinds = [kind for kind, lines in self._lines.items() if lines]
        if not kinds:
            return
        share = max(SHOWN // len(kinds), 1)
        text = []
        for kind in kinds:
            lines = self._lines[kind]
            text.append(f"{len(lines)} {kind}: " + "; ".join(lines[:share]))
            if len(lines) > share:
                text[-1] += f"; and {len(lines) - share} more"
        fixes = [FIXES[kind] for kind in kinds]
        if not any(name.startswith(prefixes) for name in names):
            fixes.insert(0, f"use a checkpoint whose tensor names begin with {prefixes[-1]!r}")
        raise BadCheckpoint(
            what=f"the tensors of {self.folder} do not fit its configuration",
            evidence="\n    ".join(text),
            fix="; ".join(fixes),
            code=KINDS[kinds[0]] if len(kinds) == 1 else SEVERAL,
        )
