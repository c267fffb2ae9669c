"""`Suite`: a test class for an author's own tests, one test a trial.

import clover_rt_conformance

class TestMine(clover_rt_conformance.Suite):
    backend = "mine"
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pytest

    from clover_rt.backend import Device
    from clover_rt.spec import Precision
    from clover_rt_conformance.client import Runner
    from clover_rt_conformance.trial import Trial


class Suite:
    """Inherit it and name a backend; narrow it with the other fields, as the command's flags do.

    backend    name of an installed backend
    device     a device of it; None: its first that is not software
    require    ops that must not be declined; "hot" stands for the three that decide speed
    A device that no plugin offers: override `open_device`; it then runs in the tests' process.
    """

    backend: ClassVar[str] = ""
    device: ClassVar[str | None] = None
    environment: ClassVar[dict[str, str]] = {}
    ops: ClassVar[tuple[str, ...]] = ()
    cases: ClassVar[tuple[str, ...]] = ()
    classes: ClassVar[tuple[str, ...]] = ()
    precision: ClassVar[str | None] = None
    is_full: ClassVar[bool] = False
    seed: ClassVar[int] = 0
    require: ClassVar[tuple[str, ...]] = ()
    timeout_s: ClassVar[float] = 120.0
    _runners: ClassVar[dict[type, Any]] = {}

    @classmethod
    def open_device(cls) -> Device | None:
        """Return a new device to judge in this process; None: `backend` in a worker."""
        return None

    def test_conforms(self, trial: Trial, precision: Precision) -> None:
        """Fail where the device breaks a contract; skip, with its reason, what it declines."""
        import pytest

        from clover_rt_conformance.report import Report, failure
        from clover_rt_conformance.trial import Outcome

        about = Report(self.backend, self.device, dict(self.environment), seed=self.seed)
        about.required = self._choice().required
        result = self._runner().run(trial, precision, self.seed)
        if result.outcome.is_wrong or about.is_refused(result):
            pytest.fail(failure(about, result), pytrace=False)
        if not result.outcome.is_right:
            name = result.outcome.value.replace("_", " ")
            pytest.skip(f"{name}: {'; '.join(result.detail)}")
        assert result.outcome in (Outcome.NATIVE, Outcome.COMPOSED)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one test of each trial and precision; no trial at all is an error."""
        if "trial" in metafunc.fixturenames:
            found = list(self._params())
            assert found, f"{type(self).__name__} chooses no case: zero cases are a failure"
            metafunc.parametrize(("trial", "precision"), found)

    @classmethod
    def _params(cls) -> Iterator[Any]:
        import pytest

        from clover_rt_conformance.catalog import chosen

        choice = cls._choice()
        for trial, precision in chosen(choice):
            if not choice.waits(trial):
                yield pytest.param(trial, precision, id=f"{trial.id} {precision.value}")

    @classmethod
    def _choice(cls) -> Any:
        from clover_rt.spec import Precision
        from clover_rt_conformance.catalog import Choice

        both = tuple(Precision) if cls.precision is None else (Precision(cls.precision),)
        return Choice(cls.ops, cls.cases, cls.classes, both, cls.is_full, cls.require)

    @classmethod
    def _runner(cls) -> Runner:
        from clover_rt_conformance.bench import Bench
        from clover_rt_conformance.client import Inline, Workers

        if cls not in Suite._runners:
            made: Runner
            if cls.open_device.__func__ is Suite.open_device.__func__:  # type: ignore[attr-defined]
                made = Workers(cls.backend, cls.device, cls.environment, cls.timeout_s)
            else:
                made = Inline(Bench(cls._opened))
            Suite._runners[cls] = made
        return Suite._runners[cls]  # type: ignore[no-any-return]

    @classmethod
    def _opened(cls) -> Device:
        device = cls.open_device()
        assert device is not None, f"{cls.__name__}.open_device returned no device"
        return device

    @classmethod
    def teardown_class(cls) -> None:
        """End the worker, or close the device."""
        runner = Suite._runners.pop(cls, None)
        if runner is not None:
            runner.close()
