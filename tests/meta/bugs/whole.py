"""The end of a pass, and devices that move bytes wrongly."""

from __future__ import annotations

from tests.meta.bugs.bug import Bug
from tests.meta.wrong_device import CopiesWords, DropsTail, ReusesMemory, words

HEAD = "confidence_topk/f32/top=8"
PICK = (
    Bug(
        "ties go to the highest id",
        "K-12",
        "confidence_topk/f32/top=4/preview8/ties",
        words("confidence_topk", ("np.lexsort((np.arange(vocab)", "np.lexsort((-np.arange(vocab)")),
    ),
    Bug(
        "the finite flag is always set",
        "K-19",
        "confidence_topk/f32/top=4/preview8/nan-row",
        words(
            "confidence_topk", ("bool(np.isfinite(rows).all() and np.isfinite(raw).all())", "True")
        ),
    ),
    Bug(
        "only wanted rows are checked",
        "K-13",
        "confidence_topk/f32/top=4/preview8/nan-unwanted",
        words("confidence_topk", ("np.isfinite(rows).all() and ", "")),
    ),
    Bug(
        "accepted drafts are not counted",
        "K-04",
        f"{HEAD}/verify8",
        words("confidence_topk", ('if w["count_from"] >= 0:', "if False:")),
    ),
    Bug(
        "the probe of another row",
        "K-04",
        f"{HEAD}/verify8",
        words(
            "confidence_topk",
            (
                'logits[w["probe"]] if w["probe"] >= 0',
                'logits[max(w["probe"] - 1, 0)] if w["probe"] >= 0',
            ),
        ),
    ),
)
WHOLE = (
    Bug(
        "a chunk shorter than the taps",
        "K-30",
        "model/clover_tiny/prefill-chunk=1",
        words(
            "causal_conv",
            ("if s.kind is Kind.COMMIT and s.rows:", "if s.kind is Kind.COMMIT and s.rows > 1:"),
        ),
    ),
    Bug("an upload drops its tail", "K-31", "model/clover_tiny/host-every-second", DropsTail),
    Bug("copies of odd sizes", "K-36", "device/copies", CopiesWords),
    Bug("new memory is not zero", "K-33", "device/new-memory-is-zero", ReusesMemory),
)
