"""Follow a page of the documentation: write its files, run its commands, compare its output."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"(?:^File `(?P<file>[^`]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
MAIN = "import sys; from clover_rt.cli import main; sys.exit(main())"
TIMEOUT_S = 300


@dataclass(frozen=True)
class Block:
    """A fenced block; file is what the page calls it, "" for none."""

    kind: str
    text: str
    file: str


def blocks(page: str) -> list[Block]:
    found = FENCE.finditer(page)
    return [Block(m["kind"], m["text"], m["file"] or "") for m in found]


def section(page: str, title: str) -> str:
    """Return the text under a heading of two marks, up to the next one."""
    return page.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


class Walk:
    """A reader with a shell: a folder, an environment, and the output of the last block.

    Packages are "installed" by putting them on the path beside an entry-point file, so that no
    environment has to be made; FreshWalk makes one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cwd = folder
        self.output = ""
        self.python = sys.executable
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("CLOVER_RT")}
        self.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self.seen = 0

    def follow(self, text: str) -> int:
        """Do what every block of a text says, in order; return how many there were."""
        for block in blocks(text):
            if block.file:
                path = self.cwd / block.file
                assert path.exists(), f"{block.file} is to be changed but is not there"
                path.write_text(block.text)
            elif block.kind == "sh":
                self.output = "".join(self.command(line) for line in block.text.splitlines())
            elif block.kind == "text":
                missing = [x for x in block.text.splitlines() if x not in self.output.splitlines()]
                assert not missing, f"not printed: {missing}\n{self.output}"
            else:
                continue
            self.seen += 1
        return self.seen

    def command(self, line: str) -> str:
        """Run one line as a shell would; return what it printed."""
        argv = shlex.split(line)
        if argv[0] == "cd":
            self.cwd = self.cwd / argv[1]
            return ""
        if argv[:3] == ["python", "-m", "venv"]:
            return self.make_environment(argv[3])
        if argv[0] == ".":
            assert argv[1] == ".venv/bin/activate"
            return ""
        if argv[:2] == ["pip", "install"]:
            return self.install(argv[2:])
        if argv[0] == "clover-rt":
            return self.run([self.python, "-c", MAIN, *argv[1:]])
        assert argv[0] == "python", f"a reader's shell has no {argv[0]}"
        return self.run([self.python, *argv[1:]])

    def run(self, argv: list[str]) -> str:
        done = subprocess.run(
            argv,
            cwd=self.cwd,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{argv}\n{done.stdout}"
        return done.stdout

    def make_environment(self, name: str) -> str:
        return ""

    def install(self, what: list[str]) -> str:
        if what == ["clover-rt"]:
            return ""
        assert what == ["-e", ".[test]"], what
        site = self.folder / "site"
        plant(site, self.cwd)
        path = [str(site), str(self.cwd), self.environ.get("PYTHONPATH", "")]
        self.environ["PYTHONPATH"] = os.pathsep.join(p for p in path if p)
        return ""


class FreshWalk(Walk):
    """A reader with a new virtual environment, which sees the packages of the tests' own.

    Nothing is downloaded: clover-rt and the build tool come from the tests' environment.
    """

    def make_environment(self, name: str) -> str:
        self.run([sys.executable, "-m", "venv", "--without-pip", name])
        self.python = str(self.cwd / name / "bin" / "python")
        purelib = self.run([self.python, "-c", PURELIB]).strip()
        parent = sysconfig.get_path("purelib")
        # a folder added like this has its own path files read, such as an editable install's
        Path(purelib, "parent.pth").write_text(f"import site; site.addsitedir({parent!r})\n")
        return ""

    def install(self, what: list[str]) -> str:
        if what == ["clover-rt"]:
            return self.run([self.python, "-c", "import clover_rt"])
        options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install"]
        return self.run([*pip, *options, *what])


PURELIB = "import sysconfig; print(sysconfig.get_path('purelib'))"


def plant(site: Path, project: Path) -> None:
    """Write the metadata by which a project's entry points are found, as an installer would."""
    import tomllib

    described = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    info = site / f"{described['name'].replace('-', '_')}-{described['version']}.dist-info"
    info.mkdir(parents=True)
    lines = [f"[{group}]" for group in described["entry-points"]]
    for group, points in described["entry-points"].items():
        at = lines.index(f"[{group}]") + 1
        lines[at:at] = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    version = f"Version: {described['version']}"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {described['name']}\n{version}\n")
