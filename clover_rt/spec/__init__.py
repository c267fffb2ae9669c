"""The vocabulary of contracts: what an operation is, what it reads and writes, how it is judged.

`weight`  weights as operands with a storage format (f32, f16, bf16, q8, q4)
`step`    segments and the one buffer of numbers that changes between passes
`op`      OpSpec, operands by axis name, signatures
`case`    cases, tolerances and mismatches
"""

from clover_rt.spec.case import Case, Mismatch, Tolerance, compare, seed_of
from clover_rt.spec.op import (
    Attrs,
    DType,
    Node,
    Numerics,
    Operand,
    OpSpec,
    Precision,
    Role,
    Signature,
    Tier,
    Work,
    evaluate_dim,
)
from clover_rt.spec.step import (
    PAGE_ROWS,
    Controls,
    Kind,
    Pass,
    Picks,
    Segment,
    StepLayout,
    StepParams,
    TableClass,
    Wanted,
    picks_shape,
)
from clover_rt.spec.weight import Format, HostWeight, Weight, encode_q4, encode_q8

__all__ = [
    "PAGE_ROWS",
    "Attrs",
    "Case",
    "Controls",
    "DType",
    "Format",
    "HostWeight",
    "Kind",
    "Mismatch",
    "Node",
    "Numerics",
    "OpSpec",
    "Operand",
    "Pass",
    "Picks",
    "Precision",
    "Role",
    "Segment",
    "Signature",
    "StepLayout",
    "StepParams",
    "TableClass",
    "Tier",
    "Tolerance",
    "Wanted",
    "Weight",
    "Work",
    "compare",
    "encode_q4",
    "encode_q8",
    "evaluate_dim",
    "picks_shape",
    "seed_of",
]
