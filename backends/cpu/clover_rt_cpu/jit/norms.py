"""Norms and gates: rows are independent, columns go 16 at a time, sums in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from llvmlite import ir

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cpu.jit.kernel import JitKernel, addresses, row_count
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.maths import lanes_sum, sigmoid, silu, softplus
from clover_rt_cpu.jit.table import Lanes, floats, over_lanes
from clover_rt_cpu.jit.values import F32, F32V, LANES, Value


class RmsNorm(JitKernel):
    """Normalise groups of columns."""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return np.float32(sig.attr("offset")) + floats(weights["w"])

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        params, x, y = addresses(operands, "params", "x", "y")
        eps = np.array([sig.attr("eps")], np.float32)
        words = (params, x, y, prepared.ctypes.data, sig["G"], sig["K"], eps.ctypes.data)
        return self.step([self.call("rms_norm", _rms_norm, *words)], operands, prepared, eps)


def _rms_norm(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, x, y, w, groups, columns, eps = code.args(7)
    lo, hi = code.share(row_count(code, params) * groups)
    with code.loop(lo, hi) as group:
        offset = group * columns * 4
        factor = inverse_rms(code, x + offset, columns, code.load(F32, eps))

        def scale(k: Value, at: Lanes) -> None:
            found = at.load(x + offset + k * 4) * factor * at.load(w + k * 4)
            at.store(found, y + offset + k * 4)

        over_lanes(code, columns, scale)
    code.end()


def inverse_rms(code: Code, x: Value, columns: Value, eps: Value) -> Value:
    """Return 1 / sqrt(mean of squares + eps), 16 times."""
    total = code.var(code.const(F32V, 0.0))

    def add(k: Value, at: Lanes) -> None:
        v = at.load(x + k * 4)
        total.v = code.fma(v, v, total.v)

    total.v = code.const(F32V, 0.0)
    over_lanes(code, columns, add)
    mean = lanes_sum(total.v) / columns.to(F32)
    root = code.sqrt(mean + eps)
    return code.select(root > 0.0, 1.0 / root, root).splat()


class GatedNorm(JitKernel):
    """Normalise value heads and gate them."""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return floats(weights["w"])

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        params, o, z, y = addresses(operands, "params", "o", "z", "y")
        eps = np.array([sig.attr("eps")], np.float32)
        words = (params, o, z, y, prepared.ctypes.data, sig["H"], sig["V"], eps.ctypes.data)
        return self.step([self.call("gated_norm", _gated_norm, *words)], operands, prepared, eps)


def _gated_norm(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, o, z, y, w, heads, columns, eps = code.args(8)
    lo, hi = code.share(row_count(code, params) * heads)
    with code.loop(lo, hi) as head:
        offset = head * columns * 4
        factor = inverse_rms(code, o + offset, columns, code.load(F32, eps))

        def scale(k: Value, at: Lanes) -> None:
            here = offset + k * 4
            normed = at.load(o + here) * factor * at.load(w + k * 4)
            at.store(normed * silu(code, at.load(z + here)), y + here)

        over_lanes(code, columns, scale)
    code.end()


class OutputGate(JitKernel):
    """Multiply with the sigmoid of a gate."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        words = addresses(operands, "params", "o", "gate", "y")
        return self.step([self.call("output_gate", _output_gate, *words, sig["N"])], operands)


def _output_gate(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, o, gate, y, columns = code.args(5)
    # runs of 16 columns may cross rows: every number is for itself
    total = row_count(code, params) * columns
    lo, hi = code.share((total + LANES - 1) // LANES)
    base = lo * (4 * LANES)

    def multiply(k: Value, at: Lanes) -> None:
        here = base + k * 4
        at.store(at.load(o + here) * sigmoid(code, at.load(gate + here)), y + here)

    over_lanes(code, code.least(hi * LANES, total) - lo * LANES, multiply)
    code.end()


class GdnGates(JitKernel):
    """Decay and write strength of every head."""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        rate = -np.exp(weights["A_log"].whole().values(np.float64))
        return np.concatenate([rate.astype(np.float32), floats(weights["dt_bias"])])

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        words = addresses(operands, "params", "a", "b", "g", "beta")
        call = self.call("gdn_gates", _gdn_gates, *words, prepared.ctypes.data, sig["H"])
        return self.step([call], operands, prepared)


def _gdn_gates(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, a, b, g, beta, constants, heads = code.args(7)
    lo, hi = code.share(row_count(code, params))
    with code.loop(lo, hi) as row:
        offset = row * heads * 4

        def gates(k: Value, at: Lanes) -> None:
            here = offset + k * 4
            rate = at.load(constants + k * 4)
            bias = at.load(constants + (heads + k) * 4)
            at.store(rate * softplus(code, at.load(a + here) + bias), g + here)
            at.store(sigmoid(code, at.load(b + here)), beta + here)

        over_lanes(code, heads, gates)
    code.end()
