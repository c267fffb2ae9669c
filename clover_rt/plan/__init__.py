"""Plan: a graph bound to a device: every choice made once, every choice explained.

`placement`  which kernel runs each node, and why
`memory`     buffers by liveness, states, tables
`program`    the bound steps of one (class, row bucket, candidates) key
`plan`       Plan: runs passes, keeps slots
`report`     what `--explain` and `--profile` print
"""

from clover_rt.plan.placement import Choice, Place
from clover_rt.plan.plan import Plan, Progress, bind
from clover_rt.plan.report import Profile, explain

__all__ = ["Choice", "Place", "Plan", "Profile", "Progress", "bind", "explain"]
