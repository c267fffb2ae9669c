"""The classes of bugs that kernels are known for; every case names those that it is meant for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Class:
    """One class: what its cases try, and what must hold."""

    title: str
    tries: str
    holds: str


CLASSES: dict[str, Class] = {
    "K-01": Class(
        "operands that are not contiguous",
        "every operand that a plan binds on this device",
        "dense and row-major: strides never reach a kernel",
    ),
    "K-02": Class(
        "operands that are not aligned",
        "every operand that a plan binds on this device",
        "aligned to `Device.alignment`, inside its buffer, none overlapping another",
    ),
    "K-03": Class(
        "tail tiles in columns", "N of 1, 63, 64, 65, 129, 257", "equal to the reference"
    ),
    "K-04": Class(
        "tail tiles in rows",
        "many row counts, and one binding run with every row count from 0 up",
        "equal to the reference, rows past the table untouched",
    ),
    "K-05": Class(
        "K that the group size does not divide",
        "K = 200 in plain formats; K = 192 in groups of 128 and K = 4304 in groups of 32",
        "right, or refused when packed",
    ),
    "K-06": Class("group sizes", "groups of 32, 64 and 128", "one error bound for all"),
    "K-07": Class(
        "nibble order, zero points",
        "rows of the identity read every weight back",
        "every code in its place",
    ),
    "K-08": Class(
        "experts without rows", "one expert takes all; the last one does", "no error, right rows"
    ),
    "K-09": Class("empty tables", "0 rows through every op", "nothing is written, no error later"),
    "K-10": Class(
        "duplicate ids", "an id twice in a row, a slot twice in a table", "as documented"
    ),
    "K-11": Class(
        "ids out of range", "-1, one past the end, the largest integer", "skipped, never read"
    ),
    "K-12": Class(
        "ties", "all logits equal; logits that collide in 16 bits", "unique ids, lowest first"
    ),
    "K-13": Class(
        "NaN and inf in a ranking", "one NaN, a row of NaN, inf", "ids in range and unique"
    ),
    "K-14": Class("weights of a ranking", "k of 1, 4 and 8", "applied once, sums as specified"),
    "K-15": Class("a row of -inf", "all -inf; one finite logit", "zeros, no NaN"),
    "K-16": Class("very negative logits", "logits near -2.5e5", "equal to the reference"),
    "K-17": Class("overflow of exp", "logits of 1e4, gates of 90 and 120", "finite"),
    "K-18": Class("accumulators of 16 bits", "sums near 7e4 over 8192 products", "no inf"),
    "K-19": Class(
        "checks that fast-math removes", "NaN and inf in hidden rows; softplus of 120", "seen"
    ),
    "K-20": Class("tiny values", "rows of 1e-38 and of zeros through norms", "finite; zeros stay"),
    "K-21": Class(
        "offsets past 2^31", "a table of more than 2^31 numbers (full lane)", "exact on both sides"
    ),
    "K-22": Class("limits of a grid", "65537 columns; 256 experts of 33 rows", "split, or refused"),
    "K-23": Class("limits of shared memory", "512 and 1024 experts", "no silent failure"),
    "K-24": Class("short sequences", "1, 2, 3, 7 and 8 rows", "equal to the recurrence"),
    "K-25": Class(
        "a short last chunk", "31, 32, 33, 63, 64 and 65 rows", "output and final state right"
    ),
    "K-26": Class(
        "carried state",
        "one call split in two, verify and advance against commit, snapshot and restore",
        "the same output and state; the same bits where a kernel says row-invariant",
    ),
    "K-27": Class(
        "claims", "odd geometries and table capacities", "right where claimed, else declined"
    ),
    "K-28": Class("updates in place", "50 calls from the same state", "the same bits"),
    "K-29": Class(
        "subgroup widths", "row widths around 32 and 64 lanes; run it on each device", "right"
    ),
    "K-30": Class(
        "chunks of a prompt", "whole models, prefill in chunks of 1, 7, 32, 64, 512", "same tokens"
    ),
    "K-31": Class("placement", "whole models with some ops forced to the host", "same tokens"),
    "K-32": Class("runs that differ", "50 calls on the same inputs", "the same bits"),
    "K-33": Class("padding", "capacities past the table, filled with NaN", "live rows unaffected"),
    "K-34": Class(
        "reads and writes out of bounds",
        "guard bands around every buffer that change between calls",
        "never written, never seen",
    ),
    "K-35": Class("mixed masks", "commit, preview and verify side by side", "as a dense mask"),
    "K-36": Class(
        "copies inside and between devices",
        "odd sizes and offsets on one device; two devices where there are two",
        "exact",
    ),
    "K-37": Class("first call against nth", "50 calls with the state put back", "the same bits"),
    "K-38": Class(
        "long contexts",
        "attention over 4 096 keys; 32 768 and 131 072 in the full lane",
        "in bound",
    ),
}


def name_of(k: str) -> str:
    """Return a class as messages name it: `K-12 ties`."""
    return f"{k} {CLASSES[k].title}"


def table() -> str:
    """Return the classes as a table of Markdown, for the documentation."""
    lines = ["| class | kind of bug | tried by | must hold |", "|---|---|---|---|"]
    for k, c in CLASSES.items():
        lines.append(f"| {k} | {c.title} | {c.tries} | {c.holds} |")
    return "\n".join(lines)
