"""The pytest plugin: flags for `--pyargs clover_rt_conformance`.

pytest -p clover_rt_conformance.plugin --pyargs clover_rt_conformance --backend NAME
"""

from __future__ import annotations

import pytest

OPTIONS = "clover-rt conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flags of `clover-rt conformance` that choose a device and cases."""
    group = parser.getgroup(OPTIONS)
    group.addoption("--backend", metavar="NAME", help="the backend to judge")
    group.addoption("--device", metavar="ID", help="a device of it")
    for flag, what in (
        ("--op", "of these ops"),
        ("--case", "these ids, or with * and ?"),
        ("--class", "of these classes"),
        ("--require", "ops that must not be declined; `hot`"),
        ("--env", "NAME=VALUE for the process that opens the device"),
    ):
        group.addoption(flag, action="append", default=[], help=f"{what}; may be repeated")
    group.addoption("--precision", choices=("exact", "fast"), help="default: both")
    group.addoption("--lane", choices=("usual", "full"), default="usual")
    group.addoption("--seed", type=int, default=0)
    group.addoption("--case-timeout", type=float, default=120.0, metavar="S")


def pytest_configure(config: pytest.Config) -> None:
    """Hand the flags to the suite's own test class."""
    from clover_rt_conformance.test_backend import TestBackend

    given = config.getoption
    TestBackend.backend = given("--backend") or ""
    TestBackend.device = given("--device")
    TestBackend.ops = tuple(given("--op"))
    TestBackend.cases = tuple(given("--case"))
    TestBackend.classes = tuple(given("--class"))
    TestBackend.require = tuple(given("--require"))
    TestBackend.precision = given("--precision")
    TestBackend.is_full = given("--lane") == "full"
    TestBackend.seed = given("--seed")
    TestBackend.timeout_s = given("--case-timeout")
    TestBackend.environment = dict(pair.split("=", 1) for pair in given("--env"))
