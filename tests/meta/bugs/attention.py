"""Attention and the cache of keys and values."""

from __future__ import annotations

from tests.meta import faults
from tests.meta.bugs.bug import Bug
from tests.meta.wrong_device import Refusing, kernel, words

ATTENTION = (
    Bug(
        "the page table is ignored",
        "K-35",
        "attend/H=4,K=32/x1/verify8@200",
        words("attend", ("pool_rows(page_table, s.slot, 0, s.position)", "np.arange(s.position)")),
    ),
    Bug(
        "a segment reads the rows of the first",
        "K-35",
        "attend/H=4,K=32/x1/commit32+preview32",
        words("attend", ("rows = slice(s.row0, s.row0 + seen)", "rows = slice(0, seen)")),
    ),
    Bug(
        "a preview sees only earlier rows",
        "K-35",
        "attend/H=4,K=32/x1/preview7",
        words("attend", ("s.rows if s.kind is Kind.PREVIEW else i + 1", "i + 1")),
    ),
    Bug(
        "softmax overflows",
        "K-17",
        "attend/H=4,K=32/x300/commit7",
        words(
            "attend",
            (
                "np.exp(logits - logits.max(axis=1, keepdims=True))",
                "np.exp(logits.astype(np.float32))",
            ),
        ),
    ),
    Bug(
        "keys past 2048 are lost",
        "K-38",
        "attend/long/keys=4096",
        words(
            "attend",
            (
                "pool_rows(page_table, s.slot, 0, s.position)",
                "pool_rows(page_table, s.slot, 0, min(s.position, 2048))",
            ),
        ),
    ),
    Bug(
        "a preview writes its keys",
        "K-34",
        "kv_append/preview32",
        words("kv_append", ("if s.kind is not Kind.PREVIEW", "if s.rows")),
    ),
    Bug(
        "a claim ends in an error",
        "K-27",
        "attend/H=3,K=20/x1/commit7",
        kernel("attend", Refusing(ValueError("20"))),
    ),
    Bug(
        "a claim is taken back",
        "K-27",
        "attend/H=3,K=20/x1/commit7",
        kernel("attend", Refusing(faults.refuses_late())),
    ),
    Bug(
        "a refusal without a reason",
        "K-27",
        "attend/H=3,K=20/x1/commit7",
        kernel("attend", Refusing()),
    ),
)
