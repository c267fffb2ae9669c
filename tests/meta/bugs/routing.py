"""Routing of rows to experts, and the sums that come back."""

from __future__ import annotations

from tests.meta import faults
from tests.meta.bugs.bug import Bug
from tests.meta.wrong_device import fault, words

ROUTING = (
    Bug(
        "ties go to the highest expert",
        "K-12",
        "router_topk/ties",
        words(
            "router_topk", ("np.lexsort((np.arange(len(row))", "np.lexsort((-np.arange(len(row))")
        ),
    ),
    Bug(
        "logits are compared in 16 bits",
        "K-12",
        "router_topk/colliding",
        words("router_topk", ("f64(logits[:n])", "f64(logits[:n].astype(np.float16).round(2))")),
    ),
    Bug(
        "NaN ranks first",
        "K-13",
        "router_topk/one-nan",
        words(
            "router_topk",
            ("np.where(np.isnan(row), -np.inf, row)", "np.where(np.isnan(row), np.inf, row)"),
        ),
    ),
    Bug(
        "a row of -inf becomes NaN",
        "K-15",
        "router_topk/all-minus-inf",
        words("router_topk", ("e / total if total != 0 else 0", "e / total")),
    ),
    Bug(
        "a finite sentinel masks",
        "K-16",
        "router_topk/very-negative",
        words(
            "router_topk",
            (
                "rank = np.where(np.isnan(row), -np.inf, row)",
                "rank = np.maximum(np.nan_to_num(row), -5e4)",
            ),
        ),
    ),
    Bug(
        "half of the experts do not fit",
        "K-23",
        "router_topk/E=1024,R=8/commit33",
        fault("router_topk", faults.ranks_half_of_the_experts),
    ),
    Bug(
        "the last expert is dropped",
        "K-08",
        "group_rows/E=16,R=4/T=7/last-expert",
        words("group_rows", ("for e in range(experts)", "for e in range(experts - 1)")),
    ),
    Bug(
        "an expert chosen twice by a row counts once",
        "K-10",
        "group_rows/E=16,R=4/T=64/random",
        words(
            "group_rows",
            (
                "pairs = np.flatnonzero(flat == e)",
                "pairs = np.flatnonzero(flat == e)\n"
                "        _, first = np.unique(pairs // ids.shape[1], return_index=True)\n"
                "        pairs = pairs[first]",
            ),
        ),
    ),
    Bug(
        "ids out of range are clamped",
        "K-11",
        "embed_rows/f32/T=33",
        words(
            "embed_rows",
            (
                "if 0 <= token < vocab:",
                "if True:\n            token = min(max(token, 0), vocab - 1)",
            ),
        ),
    ),
    Bug(
        "an expert that is not there is read",
        "K-11",
        "combine/R=8/T=33",
        words("combine", ("if e >= 0:", "if e >= -1:")),
    ),
    Bug(
        "weights are applied twice",
        "K-14",
        "combine/R=8/T=33",
        words("combine", ("float(weights[t, r]) *", "float(weights[t, r]) ** 2 *")),
    ),
    Bug(
        "the coreset is cut after the mass",
        "K-04",
        "coreset/E=16,R=4,p=0.8/preview8",
        words(
            "coreset",
            ("np.cumsum(mass[order]) - mass[order]", "np.cumsum(mass[order])"),
            function="kept",
        ),
    ),
    Bug(
        "sums differ between calls",
        "K-32",
        "combine/R=8/T=33/50-calls",
        fault("combine", faults.drifts_on_the_tenth_call),
    ),
    Bug(
        "experts sum in 16 bits",
        "K-18",
        "expert_gemm/sums-near-8e4",
        fault("expert_gemm", faults.half_precision_sums),
    ),
)
