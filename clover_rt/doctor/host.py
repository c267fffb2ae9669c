"""Host: all that the probes know of a machine, so that a machine can be a folder in a test."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from clover_rt.plugins import Status

WATCHED = ("clover-rt", "numpy", "llvmlite", "torch", "triton", "pyopencl", "vulkan", "kp")
ABSENT, UNSTARTED, DONE = "absent", "unstarted", "done"
TIMED_OUT, CRASHED = "timed out", "crashed"


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended.

    state  "done" (it returned `code`), "absent" (no such program), "unstarted" (the system does
           not start it), "timed out", or "crashed" (a signal ended it, and `code` is minus its
           number; on Windows an exception, and `code` is that)
    """

    state: str
    code: int = 0
    out: str = ""
    err: str = ""
    seconds: float = 0.0

    @property
    def is_fine(self) -> bool:
        return self.state == DONE and self.code == 0

    @property
    def is_started(self) -> bool:
        return self.state not in (ABSENT, UNSTARTED)

    @property
    def how(self) -> str:
        """Return the end in words, with the last line that it wrote to stderr."""
        words = {
            ABSENT: "no such program",
            UNSTARTED: "cannot be started",
            TIMED_OUT: f"timed out after {self.seconds:.0f} s",
            CRASHED: f"ended by {_cause(self.code)}",
        }.get(self.state, f"exit code {self.code}")
        last = self.err.strip().splitlines()[-1:]
        return f"{words}: {last[0].strip()}" if last else words


@dataclass(frozen=True, slots=True)
class Node:
    """A device node. problem is "" where it opens for reading and writing, else the reason."""

    path: str
    mode: int
    uid: int
    gid: int
    problem: str = ""


Run = Callable[[Sequence[str], Mapping[str, str], float], Ran]


@dataclass(frozen=True)
class Host:
    """A machine: its files, environment, programs, installed packages and backends.

    root      "/" or a folder that stands for it
    run       (argv, environment, seconds) -> Ran
    child     (name and arguments, environment, seconds) -> Ran of `clover_rt.doctor.child`
    node      path -> Node, or None where there is no such node
    writable  path -> can files be made there
    disk      path -> (total, free) bytes of the disk that it is on, zeros where not known
    backends  () -> one status a backend
    """

    root: Path
    environ: Mapping[str, str]
    run: Run
    child: Run
    node: Callable[[str], Node | None]
    writable: Callable[[str], bool]
    disk: Callable[[str], tuple[int, int]]
    backends: Callable[[], Sequence[Status]]
    packages: Mapping[str, str] = field(default_factory=dict)
    uid: int = 0
    gids: frozenset[int] = frozenset()
    cores: int = 1
    usable_cores: int = 1
    machine: str = "x86_64"
    system: str = "Linux"
    kernel: str = ""
    python: str = ""
    user: str = ""
    name: str = ""
    home: str = ""

    @staticmethod
    def here() -> Host:
        """Return the machine that this runs on."""
        from clover_rt.doctor.survey import backends

        cores = os.cpu_count() or 1
        able = getattr(os, "sched_getaffinity", None)
        host = Host(
            root=Path("/"),
            environ=dict(os.environ),
            run=_run,
            child=_ask,
            node=_node,
            writable=_writable,
            disk=_disk,
            backends=lambda: backends(host),
            packages=_packages(),
            **_identity(),
            cores=cores,
            usable_cores=len(able(0)) if able is not None else cores,
            machine=platform.machine(),
            system=platform.system(),
            kernel=platform.release(),
            python=platform.python_version(),
            name=socket.gethostname(),
            home=os.path.expanduser("~"),
        )
        return host

    def read(self, path: str) -> str | None:
        """Return a file's text without its last line end; None where it cannot be read."""
        try:
            text = self.at(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        return text.rstrip("\n")

    def names(self, path: str) -> list[str]:
        """Return the names in a folder in order; none where it cannot be listed."""
        try:
            return sorted(p.name for p in self.at(path).iterdir())
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        # False too where a folder on the way may not be searched, unlike Path.exists
        return os.path.exists(self.at(path))

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def group(self, gid: int) -> str:
        """Return a group's name, "" for one that /etc/group does not know."""
        for line in (self.read("/etc/group") or "").splitlines():
            fields = line.split(":")
            if len(fields) > 2 and fields[2] == str(gid):
                return fields[0]
        return ""


CHILD = ("-m", "clover_rt.doctor.child")
# from here on a code of Windows is that of an exception nobody caught
WINDOWS_CRASH = 0xC0000000
# what asks a process to end, where the system has it; Python turns only SIGINT into an exception
ENDING = ("SIGTERM", "SIGHUP")


def _ask(args: Sequence[str], environ: Mapping[str, str], seconds: float) -> Ran:
    return _run([sys.executable, *CHILD, str(os.getpid()), *args], environ, seconds)


def _run(argv: Sequence[str], environ: Mapping[str, str], seconds: float) -> Ran:
    """Run a program in a session of its own and, at the end, leave none of its processes.

    That holds too where this process is told to end meanwhile.
    """
    with _ended_in_order():
        try:
            process = subprocess.Popen(
                list(argv),
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except FileNotFoundError as error:
            return Ran(ABSENT, err=f"{argv[0]}: {error.strerror}")
        except OSError as error:
            return Ran(UNSTARTED, err=f"{argv[0]}: {error.strerror}")
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return Ran(TIMED_OUT, seconds=seconds)
        finally:
            _end(process)
    is_crashed = process.returncode < 0 or process.returncode >= WINDOWS_CRASH
    state = CRASHED if is_crashed else DONE
    return Ran(state, process.returncode, out, err)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let signals that would end this process at once raise SystemExit, so that children go first.

    A program that handles them itself keeps its handlers.
    """
    ours: list[int] = []

    def stop(number: int, frame: Any) -> None:
        # once is enough: another one must not stop the clearing up
        for own in ours:
            signal.signal(own, signal.SIG_IGN)
        raise SystemExit(128 + number)

    # elsewhere Python lets nobody set handlers
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
        ours += [n for n in numbers if signal.getsignal(n) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _end(process: subprocess.Popen[Any]) -> None:
    """End a program, and what it started in its session."""
    # Windows has no groups of processes
    if hasattr(os, "killpg"):
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is not None:
        return
    process.kill()
    # one that hangs in a driver cannot be ended; doctor goes on without it
    try:
        process.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        return


def _node(path: str) -> Node | None:
    """Return a node and whether it opens: the open itself is the only test that counts."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    problem = ""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        problem = error.strerror or str(error)
    return Node(path, found.st_mode & 0o7777, found.st_uid, found.st_gid, problem)


def _writable(path: str) -> bool:
    """Return whether a folder takes files, or could be made."""
    folder = _existing(path)
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _disk(path: str) -> tuple[int, int]:
    try:
        usage = shutil.disk_usage(_existing(path))
    except OSError:
        return 0, 0
    return usage.total, usage.free


def _existing(path: str) -> Path:
    """Return the nearest folder above a path that is there."""
    folder = Path(path)
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def _packages() -> dict[str, str]:
    found = {}
    for name in WATCHED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _identity() -> dict[str, Any]:
    """Return who this process runs as; Windows has no numbers for it."""
    if not hasattr(os, "geteuid"):
        return {"user": os.environ.get("USERNAME", "")}
    import pwd

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = os.environ.get("USER", "")
    return {
        "uid": os.geteuid(),
        "gids": frozenset({os.getegid(), *os.getgroups()}),
        "user": user,
    }


def _cause(code: int) -> str:
    """Return what a crashed program's code says: a signal, or on Windows an exception."""
    if code > 0:
        return f"exception 0x{code:08X}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
