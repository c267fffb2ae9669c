"""The conformance suite: judges a device by the cases of every contract and by whole models.

Three doors: `clover-rt conformance --backend NAME`, the pytest plugin
(`pytest -p clover_rt_conformance.plugin --pyargs clover_rt_conformance --backend NAME`), and a test
class that inherits `Suite`.

`harness`  one case on one device: every rule of a contract, checked around one call
`catalog`  every trial: cases, what is made from them, whole models, copies
`client`   trials in worker processes; `worker` is such a process
`report`   counts, errors beside tolerances, the lines that rerun failures
"""

from clover_rt_conformance.suite import Suite

__all__ = ["Suite"]
