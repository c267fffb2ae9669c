"""Where compiled kernels are kept: `clover-rt/triton/VERSION/ARCH` of the user's cache folder.

Triton names each file there by a hash of source, constants, target and compiler. `TRITON_CACHE_DIR`
moves the whole cache. Where it cannot be written, kernels go to a folder of this process alone,
and a warning says so.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import triton

from clover_rt.cache import cache_folder

VARIABLE = "TRITON_CACHE_DIR"


_ours: set[str] = set()
"""Folders that were set here; another card of this process may have had another."""


def is_ours(name: str, value: str) -> bool:
    """Was this value of a variable set here, and not by the user?"""
    return name == VARIABLE and value in _ours


def use_cache(arch: str) -> Path:
    """Make triton keep what it compiles; return the folder."""
    given = os.environ.get(VARIABLE, "")
    if is_ours(VARIABLE, given):
        given = ""
    folder = Path(given) if given else cache_folder("triton") / triton.__version__ / arch
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"room for kernels")
    except OSError as error:
        return use_own_folder(error)
    if not given:
        _set(folder)
    return folder


def _set(folder: Path) -> None:
    _ours.add(str(folder))
    os.environ[VARIABLE] = str(folder)


def use_own_folder(error: OSError) -> Path:
    """Make triton keep what it compiles until this process ends; return the folder."""
    warnings.warn(
        f"kernels cannot be kept, so each start compiles them anew ({error}); make room there, or "
        f"set {VARIABLE} to a folder that can be written",
        RuntimeWarning,
        stacklevel=2,
    )
    folder = Path(tempfile.mkdtemp(prefix="clover-rt-kernels-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _set(folder)
    return folder
