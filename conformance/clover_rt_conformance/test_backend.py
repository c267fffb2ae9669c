"""What `pytest --pyargs clover_rt_conformance` collects: the backend that --backend names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clover_rt_conformance.suite import Suite

if TYPE_CHECKING:
    import pytest


class TestBackend(Suite):
    """The whole suite on one backend; its fields are set by the plugin from the flags."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make the tests; without a backend say which flags are missing."""
        import pytest

        if not self.backend:
            raise pytest.UsageError(
                "name a backend: pytest -p clover_rt_conformance.plugin "
                "--pyargs clover_rt_conformance --backend NAME"
            )
        super().pytest_generate_tests(metafunc)
