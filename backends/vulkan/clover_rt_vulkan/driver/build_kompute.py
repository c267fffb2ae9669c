"""Build and install kp, the package of the Kompute driver: `python -m` with this module's name.

kp is published as source alone. Left to itself its build fetches headers by git, and its metadata
asks for a numpy older than ours, with which it runs all the same. So it is built here with what the
system and the extra `kompute` have, and installed without asking for anything. The wheel is kept in
`clover-rt/kompute` of the user's cache folder: a second run only installs it, unless the libraries
that it was linked with have gone.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from clover_rt.cache import cache_folder
from clover_rt.errors import BackendUnavailable, CloverError

VERSION = "0.9.0"
WHEEL = f"kp-{VERSION}-cp{sys.version_info.major}{sys.version_info.minor}-*.whl"
PROGRAMS = ("cmake", "make")
# headers by Debian's packages of them, and modules that the build imports
HEADERS = {
    "Python.h": "python3-dev",
    "vulkan/vulkan.hpp": "libvulkan-dev",
    "fmt/format.h": "libfmt-dev",
}
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
MODULES = ("pip", "pybind11", "setuptools", "wheel")
# what the build would else fetch
OFF = ("USE_BUILT_IN_VULKAN_HEADER", "USE_BUILT_IN_PYBIND11", "USE_BUILT_IN_FMT", "INSTALL")
# pip's own first error tells only that there are more
ERROR = re.compile("CMake Error|: (fatal )?error:|: cannot find -l")
# lines of a log that are shown, from the first that tells of an error
SHOWN = 16


def main() -> int:
    """Build kp where the cache has none that loads here, and install it; return an exit code."""
    try:
        wheel = install(cache_folder("kompute"))
    except CloverError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"kp {VERSION} is installed; the wheel is kept as {wheel}")
    return 0


def install(folder: Path) -> Path:
    """Install kp's wheel for this Python, the folder's or one built into it now, and return it.

    Raises BackendUnavailable: CRT-3532 what the build needs is missing, CRT-3533 it fails.
    """
    for wheel in folder.glob(WHEEL):
        _put(wheel)
        with suppress(BackendUnavailable):
            _load()
            return wheel
        wheel.unlink()
    wheel = build(folder)
    _put(wheel)
    _load()
    return wheel


def build(folder: Path) -> Path:
    """Build kp's wheel into the folder, and return it; raises as `install` does."""
    missing = needs(os.environ)
    if missing:
        raise BackendUnavailable(
            what=f"kp {VERSION} was to be built",
            evidence=f"missing: {', '.join(missing)}",
            fix="pip install 'clover-rt[kompute]', and on Debian: apt-get install cmake make "
            f"g++ {' '.join(HEADERS.values())}",
            code="CRT-3532",
        )
    print(f"kp {VERSION} is being built, which takes minutes", flush=True)
    # pip's own cache would give a wheel that loads no more again
    wanted = ("wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir")
    command = (*PIP, *wanted, str(folder), f"kp=={VERSION}")
    _run(command, settings(os.environ), f"kp {VERSION} was to be built")
    return next(folder.glob(WHEEL))


def needs(environ: Mapping[str, str]) -> list[str]:
    """Return what the build needs and does not find: programs, headers, Python modules."""
    path = environ.get("PATH", "")
    compiler = shutil.which(environ.get("CXX") or "c++", path=path)
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if compiler is None:
        missing.append("a C++ compiler")
    else:
        missing += [h for h in HEADERS if not _has_header(compiler, h, environ)]
    return missing + [m for m in MODULES if importlib.util.find_spec(m) is None]


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the build is run with."""
    import pybind11

    # its CMake takes the environment that is active, or the first `python` of the path
    path = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"
    # its setup.py takes one digit
    jobs = environ.get("KOMPUTE_PYTHON_NUM_PARALLEL_THREADS") or str(min(os.cpu_count() or 1, 9))
    return {
        **environ,
        **{f"KOMPUTE_OPT_{name}": "OFF" for name in OFF},
        "PATH": path,
        "VIRTUAL_ENV": sys.prefix,
        "pybind11_DIR": pybind11.get_cmake_dir(),
        "KOMPUTE_PYTHON_NUM_PARALLEL_THREADS": jobs,
    }


def _has_header(compiler: str, header: str, environ: Mapping[str, str]) -> bool:
    source = f"#if !__has_include(<{header}>)\n#error missing\n#endif\n"
    words = [compiler, "-I", sysconfig.get_path("include"), "-E", "-x", "c++", "-"]
    done = subprocess.run(words, input=source, env=dict(environ), capture_output=True, text=True)
    return done.returncode == 0


def _put(wheel: Path) -> None:
    command = (*PIP, "install", "--no-deps", "--force-reinstall", str(wheel))
    _run(command, os.environ, f"{wheel.name} was to be installed")


def _load() -> None:
    _run((sys.executable, "-c", "import kp"), os.environ, f"kp {VERSION} was to be loaded")


def _run(command: tuple[str, ...], environ: Mapping[str, str], what: str) -> None:
    done = subprocess.run(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        lines = done.stdout.rstrip().splitlines()
        start = next((i for i, line in enumerate(lines) if ERROR.search(line)), -SHOWN)
        told = "\n".join(lines[start:][:SHOWN])
        raise BackendUnavailable(
            what=what,
            evidence=f"the command ended with {done.returncode}:\n{told}",
            fix="read what it says; the raw driver needs no kp",
            code="CRT-3533",
        )


if __name__ == "__main__":
    sys.exit(main())
