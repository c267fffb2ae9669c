"""The operations' contracts as plain data."""

from __future__ import annotations

from typing import Any

from clover_rt.api.choices import did_you_mean
from clover_rt.errors import BadInput
from clover_rt.ops import HOT, OPS
from clover_rt.spec import OpSpec


def operations(name: str | None = None) -> list[dict[str, Any]]:
    """Return every operation's contract, or just that of `name`, in the graph's order.

    Raises BadInput (CRT-1023) for a name that is no operation.
    """
    if name is None:
        return [_contract(spec) for spec in OPS.values()]
    if name not in OPS:
        raise BadInput(
            what=f"operation {name!r} was requested",
            evidence=f"known: {', '.join(OPS)}",
            fix=f"{did_you_mean(name, OPS)}`clover-rt ops` lists them",
            code="CRT-1023",
        )
    return [_contract(OPS[name])]


def _contract(spec: OpSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "tier": spec.tier.value,
        "hot": spec.name in HOT,
        "doc": spec.doc.strip(),
        "source": spec.source,
        "attributes": list(spec.attrs),
        "writes": list(spec.writes),
        "operands": [
            {
                "name": o.name,
                "role": o.role.value,
                "dtype": o.dtype.value,
                "shape": list(o.shape),
                "optional": o.optional,
                "doc": o.doc,
            }
            for o in spec.operands
        ],
        "tolerances": {
            numerics.value: {"rtol": t.rtol, "atol": t.atol, "why": t.why}
            for numerics, t in spec.tolerance.items()
        },
    }
