"""What the command costs before it does anything: CPU time of whole processes.

CPU time, not wall time, and the least of several runs: other programs on the machine hardly add to
it. The limits are those that users were promised; what is measured is well below.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

CODE = "import sys; from clover_rt.cli import main; sys.exit(main())"


def cpu_seconds(*argv, code=CODE):
    """Return user and system time of one process."""

    def total():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = total()
    subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, check=True)
    return total() - before


@pytest.mark.parametrize("argv", [["--help"], ["run", "--help"]], ids=" ".join)
def test_help_takes_under_150_ms_of_cpu_time(argv):
    """Where an interpreter alone takes over 30 ms to start, the machine is slow at the moment."""
    slowness = max(1.0, min(cpu_seconds(code="pass") for _ in range(5)) / 0.030)
    assert min(cpu_seconds(*argv) for _ in range(5)) < 0.150 * slowness


@pytest.mark.parametrize("mode", ["diffusion", "ar", "self-spec"])
def test_a_run_of_the_built_in_model_takes_under_2_s_of_cpu_time(mode):
    assert min(cpu_seconds("run", "Hello", "--mode", mode) for _ in range(3)) < 2.0
