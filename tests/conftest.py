"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

# shared machines are slow at times: a deadline would judge the machine, not the code
settings.register_profile("default", deadline=None, print_blob=True)
settings.load_profile("default")
