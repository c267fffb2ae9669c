"""Kernels that work row by row: products and norms."""

from __future__ import annotations

from tests.meta import faults
from tests.meta.bugs.bug import Bug
from tests.meta.wrong_device import fault, words

TAIL = "linear/f32/T=33,N=65,K=192"
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
