"""Write the package of a new backend: it installs, registers, and runs everything on the host."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection
from pathlib import Path
from string import Template

from clover_rt.errors import BadInput

TEMPLATE = Path(__file__).parent / "template"
SUFFIX = ".in"
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
LONGEST = 40
RESERVED = (
    "backends",
    "conformance",
    "cpu",
    "cuda",
    "kompute",
    "opencl",
    "rocm",
    "runtime",
    "serve",
    "test",
    "tests",
    "vulkan",
)
"""Names of clover-rt's own packages and extras, those to come included."""


def write_backend(
    name: str, api: tuple[int, int], folder: Path | None = None, taken: Collection[str] = ()
) -> tuple[Path, list[Path]]:
    """Write a package for a backend and return (its folder, its files relative to it).

    name    what --backend will take: lower-case words joined by _, such as my_card
    api     (major, minor) of the plugin API that the package is written for
    folder  new or empty; default clover-rt-NAME here
    taken   names of installed plugins
    Raises BadInput: CRT-1050 no such name is possible, CRT-1051 the name is taken, CRT-1052 the
    folder has files, CRT-1053 it cannot be written, CRT-1058 the name is reserved. Nothing is
    overwritten.
    """
    check_name(name, taken)
    project = "clover-rt-" + name.replace("_", "-")
    words = {
        "name": name,
        "project": project,
        "package": f"clover_rt_{name}",
        "title": "".join(word.capitalize() for word in name.split("_")),
        "major": str(api[0]),
        "minor": str(api[1]),
    }
    target = Path(project) if folder is None else folder
    files = {
        place(path, words): filled(path, words) for path in sorted(TEMPLATE.rglob(f"*{SUFFIX}"))
    }
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise BadInput(
                what=f"backend {name!r} was to be written to {target}",
                evidence="it exists and is not an empty folder",
                fix=f"name another folder: clover-rt new-backend {name} DIR",
                code="CRT-1052",
            )
        for path, text in files.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(
            what=f"backend {name!r} was to be written to {target}",
            evidence=f"{error.filename}: {error.strerror}",
            fix=f"name a folder that you may write to: clover-rt new-backend {name} DIR",
            code="CRT-1053",
        ) from error
    return target, list(files)


def check_name(name: str, taken: Collection[str] = ()) -> None:
    """Raise BadInput unless a backend can have this name.

    CRT-1050 it makes no package, CRT-1051 an installed plugin has it, CRT-1058 it is reserved.
    """
    if not NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > LONGEST:
        raise BadInput(
            what=f"a backend was to be named {name!r}",
            evidence="it becomes the name of a package, clover_rt_NAME: lower-case letters and "
            f"digits, words joined by one _, a letter first, at most {LONGEST} characters, no "
            "word of Python",
            fix="use a name such as my_card",
            code="CRT-1050",
        )
    if name in RESERVED:
        raise BadInput(
            what=f"a backend was to be named {name!r}",
            evidence=f"clover-rt keeps the names {', '.join(RESERVED)} for packages of its own",
            fix=f"use another name, such as my_{name}",
            code="CRT-1058",
        )
    if name in taken:
        raise BadInput(
            what=f"a backend was to be named {name!r}",
            evidence=f"an installed plugin has this name; installed: {', '.join(sorted(taken))}",
            fix="use another name, or uninstall that plugin",
            code="CRT-1051",
        )


def place(path: Path, words: dict[str, str]) -> Path:
    """Return where a template's file goes in the package."""
    inside = path.relative_to(TEMPLATE).with_suffix("")
    parts = [words["package"] if part == "package" else part for part in inside.parts]
    return Path(*parts[:-1], parts[-1].replace("test_backend", f"test_{words['name']}"))


def filled(path: Path, words: dict[str, str]) -> str:
    return Template(path.read_text(encoding="utf-8")).substitute(words)
