"""Wrong variants of the runtime, each with the test that is meant to notice it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from clover_rt.engine import Engine, Settings
from tests.end_to_end import test_golden_arrays as golden_arrays
from tests.end_to_end import test_golden_decode as golden_decode
from tests.end_to_end.conftest import oracle, oracle_state
from tests.end_to_end.golden_requests import FACTS
from tests.meta import hand_checks
from tests.meta.mutate import Edit, swapped

Check = Callable[[], Any]


@dataclass(frozen=True)
class Variant:
    """Wrong code: the words of a function (`module:name`) that are changed, and the test for it."""

    name: str
    target: str
    edits: tuple[Edit, ...]
    check: Check

    def caught(self) -> str:
        """Return what the test says about the wrong code; "" where it passes."""
        with swapped(self.target, self.edits):
            return failure(self.check)


def failure(check: Check) -> str:
    """Run a test on plans that are bound anew; return its failed assertion, or ""."""
    golden_arrays.plan_of.cache_clear()
    golden_arrays.open_moe.cache_clear()
    try:
        check()
    except AssertionError as error:
        return str(error) or "assertion failed"
    finally:
        golden_arrays.plan_of.cache_clear()
        golden_arrays.open_moe.cache_clear()
    return ""


def _engine(name: str, settings: Settings | None = None) -> Engine:
    return Engine(oracle(name, 3), FACTS[name], settings)


_CAUSAL = partial(golden_arrays.test_causal_logits_come_out, "toy", "clover_tiny", "short")
_STATE = partial(golden_arrays.test_states_after_a_prompt_come_out, "toy", "clover_tiny", "short")
_ROUTES = partial(golden_arrays.test_routes_come_out_and_differ_only_at_near_ties, "toy", "short")
_CORESET = partial(golden_arrays.test_coresets_come_out, "toy", "short", "preview_masks")
_PREVIEW = partial(
    golden_arrays.test_previews_come_out_and_change_no_byte_of_the_state,
    "toy",
    "short",
    "preview_half",
)
_NARROW = partial(
    golden_arrays.test_previews_of_a_narrow_block_without_coreset_come_out, "toy", "short"
)
_TWO = partial(golden_arrays.test_two_previews_of_two_slots_in_one_pass_come_out, "toy")
_ROUNDS = partial(
    golden_arrays.test_states_after_rounds_of_verify_and_advance_come_out,
    "toy",
    "short/release/exact",
)
_DIFFUSION = partial(
    golden_decode.test_a_golden_run_comes_out, _engine, "short/release/diffusion_t03"
)
_AR = partial(golden_decode.test_a_golden_run_comes_out, _engine, "short/release/ar")
_DRAFTS = partial(
    golden_decode.test_rounds_with_given_drafts_come_out,
    _engine,
    oracle_state,
    "short/release/exact",
)


def _op(name: str, op: str, check: Check, *edits: Edit, function: str = "reference") -> Variant:
    return Variant(name, f"clover_rt.ops.{op}:{function}", edits, check)


def _rule(name: str, target: str, check: Check, *edits: Edit) -> Variant:
    return Variant(name, f"clover_rt.engine.{target}", edits, check)


_REPEAT_Q, _REPEAT_K = "np.repeat(unit(q), each, axis=1)", "np.repeat(unit(k), each, axis=1)"
_TILED = (
    (_REPEAT_Q, "np.tile(unit(q), (1, each, 1))"),
    (_REPEAT_K, "np.tile(unit(k), (1, each, 1))"),
)
_DECAY = "        memory *= np.exp(g[t])[:, None, None]\n"
_OUT = "        out[t] = "

NORMS = (
    _op("norms use w instead of 1 + w", "rms_norm", _CAUSAL, ("(offset + f64(w))", "f64(w)")),
    _op(
        "the gate comes before the norm",
        "gated_norm",
        _CAUSAL,
        ("rows = f64(o[:n])", "rows = (f64(o[:n]) * silu(f64(z[:n])))"),
        (" * silu(f64(z[:n]))}", "}"),
    ),
)
GDN = (
    _op("key heads are tiled in the scan", "block_scan", _CAUSAL, *_TILED),
    _op("key heads are tiled in the block memory", "block_memory", _PREVIEW, *_TILED),
    _op("q is not scaled", "block_scan", _CAUSAL, (" / np.sqrt(key), np", ", np")),
    _op(
        "beta is ignored",
        "block_scan",
        _STATE,
        ("beta[t][:, None] * (v[t] - read)", "v[t] - read"),
        function="delta_rows",
    ),
    _op(
        "the decay is applied after the write",
        "block_scan",
        _STATE,
        (_DECAY, ""),
        (_OUT, _DECAY + _OUT),
        function="delta_rows",
    ),
    _op(
        "block logits are scaled",
        "block_memory",
        _PREVIEW,
        ("k[rows]) * scale", "k[rows]) / np.sqrt(key) * scale"),
    ),
    _op(
        "the history slot decays cumulatively",
        "block_memory",
        _PREVIEW,
        ("np.exp(f64(g[rows]))", "np.exp(np.cumsum(f64(g[rows]), axis=0))"),
    ),
    _op(
        "the history logit divides by the block size",
        "block_memory",
        _NARROW,
        ("np.log(s.rows / 32)", "np.log(s.rows / 8)"),
    ),
    _op(
        "a preview writes S",
        "block_scan",
        _PREVIEW,
        (
            "if s.kind is Kind.PREVIEW:\n            continue",
            "if s.rows == 0:\n            continue",
        ),
        ("if s.kind is Kind.COMMIT", "if s.kind is not Kind.VERIFY"),
    ),
    _op(
        "the tape is off by one",
        "advance",
        _ROUNDS,
        ("if n == 0:", "n -= 1\n        if n == 0:"),
    ),
    _op(
        "the tape is read from its second row",
        "advance",
        _ROUNDS,
        ("tape_k[slot, :n]", "tape_k[slot, 1 : n + 1]"),
    ),
)
CONV = (
    _op("taps are reversed", "causal_conv", _CAUSAL, ("w[:, j]", "w[:, kernel - 1 - j]")),
    _op(
        "right taps are missing",
        "causal_conv",
        _PREVIEW,
        ("range(1, min(kernel, s.rows))", "range(0)"),
    ),
    _op(
        "right taps read past the block",
        "causal_conv",
        _TWO,
        (
            "total[:-d] += f64(right)[:, d - 1] * own[d:]",
            "past = f64(u[s.row0 + d : s.row0 + d + s.rows])\n"
            "                total[: len(past)] += f64(right)[:, d - 1] * past",
        ),
    ),
    _op(
        "a preview writes the ring",
        "causal_conv",
        _PREVIEW,
        ("if s.kind is Kind.COMMIT and s.rows", "if s.kind is not Kind.VERIFY and s.rows"),
    ),
)
ATTENTION = (
    _op(
        "all dimensions are rotated",
        "rope",
        _CAUSAL,
        (
            "half = params.rows, angles.shape[1]",
            "half = params.rows, x.shape[1] // heads // 2\n"
            "    theta = np.arctan2(angles[1, 1, 1], angles[1, 1, 0]) ** -angles.shape[1]\n"
            "    angles = rope_angles(len(angles), half, float(theta))",
        ),
    ),
    _op(
        "rotated pairs are interleaved",
        "rope",
        _CAUSAL,
        ("[..., :half]", "[..., 0 : 2 * half : 2]"),
        ("[..., half : 2 * half]", "[..., 1 : 2 * half : 2]"),
    ),
    _op(
        "the page table is ignored",
        "attend",
        _PREVIEW,
        ("pool_rows(page_table, s.slot, 0, s.position)", "np.arange(s.position)"),
    ),
    _op(
        "a preview sees only earlier rows",
        "attend",
        _PREVIEW,
        ("s.rows if s.kind is Kind.PREVIEW else i + 1", "i + 1"),
    ),
    _op(
        "a preview writes its k and v",
        "kv_append",
        _PREVIEW,
        ("if s.kind is not Kind.PREVIEW", "if s.rows"),
    ),
)
MOE = (
    _op(
        "the coreset is cut after the mass",
        "coreset",
        _CORESET,
        ("np.cumsum(mass[order]) - mass[order]", "np.cumsum(mass[order])"),
        function="kept",
    ),
    _op(
        "route weights are not renormalised",
        "router_topk",
        _ROUTES,
        ("total = e.sum()", "total = np.exp(row - top).sum()"),
    ),
    _op(
        "the shared expert is not gated",
        "combine",
        _CAUSAL,
        ("f64(shared[:n]) * sigmoid(f64(shared_gate[:n]))", "f64(shared[:n])"),
    ),
    _op(
        "the last expert is dropped",
        "group_rows",
        _CAUSAL,
        ("for e in range(experts)", "for e in range(experts - 1)"),
    ),
    _op(
        "the last choice of a row is dropped",
        "combine",
        _CAUSAL,
        ("enumerate(ids[t].tolist())", "enumerate(ids[t].tolist()[:-1])"),
    ),
)
PICK = (
    _op(
        "ties go to the highest id",
        "confidence_topk",
        hand_checks.equal_logits_go_to_the_lowest_id,
        ("np.lexsort((np.arange(vocab)", "np.lexsort((-np.arange(vocab)"),
    ),
    _op(
        "suppressed ids are ignored",
        "controls",
        hand_checks.a_suppressed_id_is_never_picked,
        ("    out[suppressed] = -np.inf\n", ""),
        function="apply_controls",
    ),
    _op(
        "entropy is in bits",
        "confidence_topk",
        hand_checks.entropy_is_in_nats,
        ("np.log(p[p > 0])", "np.log2(p[p > 0])"),
    ),
    _op(
        "the finite flag is always set",
        "confidence_topk",
        hand_checks.one_bad_number_clears_the_finite_flag,
        ("bool(np.isfinite(rows).all() and np.isfinite(raw).all())", "True"),
    ),
)
ENGINE = (
    _rule(
        "P is one less in diffusion",
        "diffusion:_preview",
        _DIFFUSION,
        ("emitted + r + 1", "emitted + r"),
    ),
    _rule(
        "P is one more in ar",
        "autoregressive:autoregressive",
        _AR,
        ("Ask(0, emitted + 1", "Ask(0, emitted + 2"),
    ),
    _rule(
        "P is one less in a verify",
        "self_spec:_Round._verify",
        _DRAFTS,
        ("self.emitted + j + 1", "self.emitted + j"),
    ),
    _rule(
        "a verify counts no accepted drafts",
        "self_spec:_Round._verify",
        _DRAFTS,
        ("1 if exact else -1", "-1"),
    ),
    _rule(
        "a confidence at the threshold fixes a row",
        "diffusion:_fix",
        hand_checks.a_confidence_at_the_threshold_fixes_no_row,
        ("confidence > bar", "confidence >= bar"),
    ),
)
VARIANTS = (*NORMS, *GDN, *CONV, *ATTENTION, *MOE, *PICK, *ENGINE)
CHECKS = tuple(dict.fromkeys(v.check for v in VARIANTS))


def check_name(check: Check) -> str:
    """Return a check's name with its arguments."""
    if not isinstance(check, partial):
        return check.__name__
    given = [a for a in check.args if isinstance(a, str)]
    return "-".join([check.func.__name__.removeprefix("test_"), *given])
