"""The conformance suite: runs a device's kernels on the cases of every contract.

`harness`  one case on one device: every rule of a contract, checked around one call
"""
