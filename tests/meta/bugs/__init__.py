"""Wrong backends: for each kind of bug the class that it belongs to and a small case for it."""

from tests.meta.bugs.attention import ATTENTION
from tests.meta.bugs.bug import Bug
from tests.meta.bugs.routing import ROUTING
from tests.meta.bugs.rows import LINEAR, NORMS
from tests.meta.bugs.state import STATE
from tests.meta.bugs.whole import PICK, WHOLE

BUGS = (*LINEAR, *NORMS, *ROUTING, *STATE, *ATTENTION, *PICK, *WHOLE)

__all__ = ["BUGS", "Bug"]
