"""Programs: sources put together, compiled, and kept on disk.

The cache lies in `clover-rt/opencl` of the user's cache folder (XDG_CACHE_HOME). A file's name is a
hash of device, driver, options and source; it begins with a hash of the rest. Drivers that keep
their own cache of sources have no use for it. Where it cannot be written, a warning says so.
"""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pyopencl as cl
from pyopencl.characterize import has_src_build_cache

from clover_rt.cache import cache_folder, read_checked, write_checked

SOURCES = Path(__file__).parent / "cl"


@cache
def text(name: str) -> str:
    """Return a source file by its name without the ending."""
    return (SOURCES / f"{name}.cl").read_text()


def weight_text(name: str, codes: str, has_zero: bool, *files: str) -> str:
    """Return files that are compiled once a weight: its name, its codes (f32 to q4), its zeros."""
    given = {"NAME": name, f"CODES_{codes.upper()}": 1, "HAS_ZERO": int(has_zero)}
    drop = "".join(f"#undef {key}\n" for key in given)
    return defines(given) + "".join(text(f) for f in files) + drop


def defines(values: Mapping[str, Any]) -> str:
    return "".join(f"#define {key} {value}\n" for key, value in values.items())


class Programs:
    """The programs of one device, compiled as they are asked for.

    standard  of OpenCL C
    folder    of the cache; None: the user's, or no cache where the driver has one
    built     programs by their sources
    compiled  how many were not found in the cache
    """

    def __init__(
        self, context: Any, device: Any, standard: str = "CL1.2", folder: Path | None = None
    ) -> None:
        self.context = context
        self.device = device
        self.built: dict[str, Any] = {}
        self.compiled = 0
        self._folder = folder
        if folder is None and not has_src_build_cache(device):
            self._folder = cache_folder("opencl")
        self._options = [f"-cl-std={standard}"]
        exact = cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        if device.single_fp_config & exact:
            self._options.append("-cl-fp32-correctly-rounded-divide-sqrt")

    def build(self, source: str) -> Any:
        """Return a program; the driver's error has the compiler's log."""
        if source not in self.built:
            self.built[source] = self._program(source)
        return self.built[source]

    def _program(self, source: str) -> Any:
        path = None if self._folder is None else self._folder / f"{self._key(source)}.bin"
        found = None if path is None else read_checked(path)
        with warnings.catch_warnings():
            # some compilers say something of every program
            warnings.simplefilter("ignore", cl.CompilerWarning)
            if found is not None:
                with suppress(cl.Error):
                    program = cl.Program(self.context, [self.device], [found])
                    return program.build(options=self._options)
            self.compiled += 1
            program = cl.Program(self.context, source).build(options=self._options)
        if path is not None and self._has_room():
            data = program.get_info(cl.program_info.BINARIES)[0]
            write_checked(path, data)
        return program

    def _has_room(self) -> bool:
        """Can programs be kept? Where they cannot, say so once and keep none."""
        assert self._folder is not None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder) as file:
                file.write(b"room for programs")
        except OSError as error:
            warnings.warn(
                f"programs cannot be kept, so each start compiles them anew ({error}); make room "
                "there, or set XDG_CACHE_HOME to a folder that can be written",
                RuntimeWarning,
                stacklevel=2,
            )
            self._folder = None
            return False
        return True

    def _key(self, source: str) -> str:
        d = self.device
        about = (d.name, d.vendor, d.version, d.driver_version, d.platform.version)
        told = repr((about, self._options, source))
        return hashlib.sha256(told.encode()).hexdigest()
