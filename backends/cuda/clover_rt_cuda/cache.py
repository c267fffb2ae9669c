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
OWN_FOLDER = "clover-rt-kernels-"


def is_ours(name: str, value: str) -> bool:
    """Was this value of a variable set here, and not by the user?"""
    folder = Path(value)
    is_kept = cache_folder("triton") in folder.parents
    return name == VARIABLE and (is_kept or folder.name.startswith(OWN_FOLDER))


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
    os.environ[VARIABLE] = str(folder)
    return folder


def use_own_folder(error: OSError) -> Path:
    """Make triton keep what it compiles until this process ends; return the folder."""
    warnings.warn(
        f"kernels cannot be kept, so each start compiles them anew ({error}); make room there, or "
        f"set {VARIABLE} to a folder that can be written",
        RuntimeWarning,
        stacklevel=2,
    )
    folder = Path(tempfile.mkdtemp(prefix=OWN_FOLDER))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[VARIABLE] = str(folder)
    return folder
