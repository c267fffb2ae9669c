"""How fast a checkpoint's passes are, against the memory bandwidth of the same run.

`machine`  names and sizes of the machine, its bandwidth
`traffic`  the bytes of a step: weights, KV cache, state, activations
`passes`   preview, one-token decode and prefill, by depth of the KV cache
`report`   a run with every setting as one dict
`compare`  two reports side by side, if they were measured alike
`render`   a report or a comparison as text
"""

from clover_rt.bench.compare import compare, read
from clover_rt.bench.render import render, render_comparison
from clover_rt.bench.report import Setting, report

__all__ = ["Setting", "compare", "read", "render", "render_comparison", "report"]
