"""Children of doctor end with it, however it ends; they run in sessions of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clover_rt.doctor.host import DONE, TIMED_OUT, Host
from tests.processes import is_gone

# tells its process id in a file, whole at once, and stays
STAYS = """
import os, sys, time
from clover_rt.doctor.child import end_with
end_with(int(sys.argv[2]))
open(sys.argv[1] + ".part", "w").write(str(os.getpid()))
os.replace(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""
# programs in the background of a shell are started with SIGINT ignored, and so is all they start
ASKS = f"""
import os, signal, sys
from clover_rt.doctor.host import Host
signal.signal(signal.SIGINT, signal.default_int_handler)
command = [sys.executable, "-c", {STAYS!r}, sys.argv[1], str(os.getpid())]
Host.here().run(command, os.environ, 600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_a_child_ends_with_a_doctor_that_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    doctor = subprocess.Popen([sys.executable, "-c", ASKS, str(told)], stderr=subprocess.DEVNULL)
    while not told.exists():
        assert doctor.poll() is None
        time.sleep(0.05)
    doctor.send_signal(number)
    doctor.wait(timeout=60)
    assert is_gone(int(told.read_text()))


def test_a_doctor_that_is_told_to_end_says_by_which_signal() -> None:
    code = "import os; from clover_rt.doctor.host import Host; "
    code += "Host.here().run(['sh', '-c', 'kill -TERM $PPID; sleep 60'], os.environ, 600)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 128 + signal.SIGTERM


def test_signals_do_afterwards_what_they_did_before() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)]
    assert Host.here().run(["true"], os.environ, 60).is_fine
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("after", "state"), [("", DONE), ("; sleep 60", TIMED_OUT)])
def test_what_a_child_started_ends_with_it(after: str, state: str, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = f"sleep 600 >/dev/null 2>&1 & echo $! > {told}{after}"
    assert Host.here().run(["sh", "-c", script], os.environ, 2.0).state == state
    assert is_gone(int(told.read_text()))
