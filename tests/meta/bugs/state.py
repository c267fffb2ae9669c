"""Kernels that carry the state of a sequence."""

from __future__ import annotations

from tests.meta import faults
from tests.meta.bugs.bug import Bug
from tests.meta.wrong_device import fault, words

SCAN = "block_scan/H=4,K=16,V=24"
STATE = (
    Bug(
        "the memory starts anew",
        "K-26",
        f"{SCAN}/commit7",
        words("block_scan", ("memory = f64(S[s.slot])", "memory = f64(S[s.slot]) * 0")),
    ),
    Bug(
        "another slot decays",
        "K-26",
        f"{SCAN}/commit7",
        fault("block_scan", faults.decays_the_next_slot),
    ),
    Bug(
        "an empty table writes state",
        "K-09",
        f"{SCAN}/empty",
        fault("block_scan", faults.decays_every_slot),
    ),
    Bug(
        "the last short chunk is wrong",
        "K-25",
        f"{SCAN}/commit33",
        fault("block_scan", faults.forgets_the_last_chunk),
    ),
    Bug(
        "a preview writes the memory",
        "K-26",
        f"{SCAN}/preview8",
        words(
            "block_scan",
            (
                "if s.kind is Kind.PREVIEW:\n            continue",
                "if s.rows == 0:\n            continue",
            ),
            ("if s.kind is Kind.COMMIT", "if s.kind is not Kind.VERIFY"),
        ),
    ),
    Bug(
        "the tape is one row late",
        "K-24",
        f"{SCAN}/verify8",
        fault("block_scan", faults.tape_one_row_late),
    ),
    Bug(
        "a chunk is inverted by powers",
        "K-25",
        "block_scan/equal-keys-kept/commit64",
        fault("block_scan", faults.inverts_by_powers),
    ),
    Bug(
        "advance replays one row less",
        "K-26",
        "advance/one",
        words("advance", ("if n == 0:", "n -= 1\n        if n == 0:")),
    ),
    Bug(
        "advance keeps what it wrote",
        "K-28",
        "advance/several/50-calls",
        fault("advance", faults.keeps_what_it_wrote),
    ),
    Bug(
        "the ring is not carried",
        "K-26",
        "causal_conv/C=160/commit32/split-at-1",
        words(
            "causal_conv",
            ("if s.kind is Kind.COMMIT and s.rows:", "if s.kind is Kind.COMMIT and s.rows > 2:"),
        ),
    ),
    Bug(
        "a right tap is missing",
        "K-24",
        "causal_conv/C=56/preview8",
        words(
            "causal_conv", ("range(1, min(kernel, s.rows))", "range(1, min(kernel - 1, s.rows))")
        ),
    ),
    Bug(
        "a late call is wrong",
        "K-37",
        "causal_conv/C=160/four-sequences/50-calls",
        fault("causal_conv", faults.wrong_on_the_thirtieth_call),
    ),
)
