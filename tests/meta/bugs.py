"""Wrong backends: for each kind of bug the class that it belongs to and a small case for it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.meta import faults
from tests.meta.wrong_device import (
    CopiesWords,
    DropsTail,
    Make,
    Refusing,
    ReusesMemory,
    fault,
    kernel,
    words,
)


@dataclass(frozen=True)
class Bug:
    """A wrong device, the class meant for its bug, and a case of that class that shows it."""

    name: str
    of: str
    case: str
    make: Make


TAIL = "linear/f32/T=33,N=65,K=192"
SCAN = "block_scan/H=4,K=16,V=24"
HEAD = "confidence_topk/f32/top=8"

LINEAR = (
    Bug(
        "the last tile of columns is dropped",
        "K-03",
        TAIL,
        fault("linear", faults.last_column_tile),
    ),
    Bug("the last tile of rows is dropped", "K-04", TAIL, fault("linear", faults.last_row_tile)),
    Bug(
        "rows of the longest call are written",
        "K-09",
        "linear/q4-128/T=130,N=96,K=128/residual/every-row-count",
        fault("linear", faults.remembers_the_longest_call),
    ),
    Bug(
        "K past the last group",
        "K-05",
        "linear/f32/T=7,N=65,K=200",
        fault("linear", faults.whole_groups_only),
    ),
    Bug(
        "groups of 128 are assumed",
        "K-06",
        "linear/q4-32/T=7,N=63,K=192",
        fault("linear", faults.groups_of_128),
    ),
    Bug(
        "nibbles are swapped",
        "K-07",
        "linear/q4-32/identity",
        fault("linear", faults.swapped_nibbles),
    ),
    Bug(
        "zero points are ignored",
        "K-07",
        "linear/q4-64/identity",
        fault("linear", faults.no_zero_point),
    ),
    Bug(
        "zero points of the group before",
        "K-07",
        "linear/q4-32/identity",
        fault("linear", faults.zero_of_the_group_before),
    ),
    Bug(
        "sums of 16 bits",
        "K-18",
        "linear/f32/sums-near-7e4",
        fault("linear", faults.half_precision_sums),
    ),
    Bug(
        "a grid of 65536",
        "K-22",
        "linear/bf16/T=1,N=65537,K=32",
        fault("linear", faults.only_65536_columns),
    ),
    Bug(
        "it writes behind its output",
        "K-34",
        "linear/q4-128/T=130,N=96,K=128/residual/padded",
        fault("linear", faults.writes_behind),
    ),
    Bug(
        "it reads behind its input",
        "K-34",
        "rms_norm/G=3,K=24/T=65/offset=1/padded",
        fault("rms_norm", faults.reads_behind),
    ),
    Bug(
        "it reads rows past the table",
        "K-33",
        "rms_norm/G=3,K=24/T=65/offset=1/padded",
        fault("rms_norm", faults.reads_rows_past_the_table),
    ),
    Bug(
        "it writes rows past the table",
        "K-33",
        "rms_norm/G=3,K=24/T=65/offset=1/padded",
        fault("rms_norm", faults.writes_rows_past_the_table),
    ),
    Bug(
        "it sums into stale scratch",
        "K-34",
        "rms_norm/G=3,K=24/T=65/offset=1/padded",
        fault("rms_norm", faults.sums_into_scratch, 64),
    ),
    Bug(
        "it writes its input",
        "K-34",
        "rms_norm/G=3,K=24/T=65/offset=1/padded",
        fault("rms_norm", faults.writes_its_input),
    ),
)
NORMS = (
    Bug(
        "eps is left out",
        "K-20",
        "rms_norm/G=1,K=64/T=31/offset=1",
        words("rms_norm", (" + eps", "")),
    ),
    Bug(
        "lanes past the last 32 are dropped",
        "K-29",
        "rms_norm/G=1,K=33/T=3/offset=1",
        words("rms_norm", ("(groups**2).mean", "(groups[..., : k // 32 * 32]**2).mean")),
    ),
    Bug(
        "the gate overflows",
        "K-17",
        "output_gate/N=64/T=33",
        words(
            "output_gate",
            ("sigmoid(f64(gate[:n]))", "np.exp(gate[:n]) / (1 + np.exp(gate[:n]))"),
        ),
    ),
    Bug(
        "softplus overflows",
        "K-19",
        "gdn_gates/H=4/T=33",
        words(
            "gdn_gates",
            (
                "softplus(f64(a[:n]) + f64(dt_bias))",
                "np.log1p(np.exp((a[:n] + f64(dt_bias)).astype(np.float32)))",
            ),
        ),
    ),
    Bug(
        "the row's position is ignored",
        "K-04",
        "rope/H=4,K=32,r=4/commit32",
        words("rope", ("angles[params.positions()]", "angles[: params.rows]")),
    ),
)
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
BUGS = (*LINEAR, *NORMS, *ROUTING, *STATE, *ATTENTION, *PICK, *WHOLE)
