"""A plugin for tests of the suite, laid down as an installed distribution."""

from __future__ import annotations

from pathlib import Path

MODULE = '''
import os
import time

import numpy as np

from clover_rt.backend import Backend, DeviceInfo, Kernel, Probe
from clover_rt.hookspecs import hookimpl
from clover_rt_conformance.reference_device import ReferenceDevice


class Bad(Kernel):
    """Takes {op} and ends the process, hangs, or answers zero."""

    def __init__(self, right, how):
        self.right, self.how = right, how

    def supports(self, sig):
        return "K=64 exceeds 32" if self.how == "declines" else ""

    def bind(self, sig, operands, prepared, scratch):
        if self.how == "crashes":
            print("last words", flush=True)
            os.abort()
        if self.how == "hangs":
            time.sleep(600)
        step = self.right.bind(sig, operands, self.right.prepare(sig, prepared), scratch)
        if self.how == "sticks":
            self.right.device.lost = True
            raise RuntimeError("the device is lost")
        if self.how == "prints":
            print("a kernel prints to standard output")
            return step
        return lambda: None


class Losable(ReferenceDevice):
    lost = False

    def copy(self, *args):
        if self.lost:
            raise RuntimeError("the device is lost")
        super().copy(*args)

    def upload(self, *args):
        if self.lost:
            raise RuntimeError("the device is lost")
        super().upload(*args)


class Mine(Backend):
    name = "mine"
    api = (1, 0)

    def probe(self):
        whole = DeviceInfo("whole", "a right device")
        bad = [DeviceInfo(how, how, is_software=True) for how in HOWS]
        notes = {"environment": "CLOVER_RT_TEST_DEVICE=1"}
        wanting = DeviceInfo("wanting", "wants a variable", is_software=True, notes=notes)
        return Probe((whole, *bad, wanting))

    def open(self, info):
        if info.id == "wanting":
            assert os.environ["CLOVER_RT_TEST_DEVICE"] == "1"
        if info.id == "breaks":
            raise RuntimeError("no such driver")
        device = Losable(info.id)
        if info.id in HOWS:
            bad = Bad(device.kernels["rope"], info.id)
            device.kernels = {**device.kernels, "rope": bad}
        return device


HOWS = ("crashes", "hangs", "wrong", "declines", "prints", "breaks", "sticks")


@hookimpl
def clover_rt_backends():
    return [Mine()]
'''


def install(folder: Path) -> Path:
    """Lay the plugin down in a folder that is to be on sys.path; return the folder."""
    (folder / "mine_plugin.py").write_text(MODULE)
    info = folder / "mine_plugin-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine-plugin\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[clover_rt.backends]\nmine = mine_plugin\n")
    return folder
