"""`clover-rt info`: what a checkpoint is."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from clover_rt.cli.parser import DEFAULT_MODEL, named

HELP = "tell what a checkpoint is"
DESCRIPTION = """Tell what a checkpoint is: geometry, types and sizes of its weights, block
settings, response controls, stop ids, tokenizer, and what of it is not run. Every tensor's name,
shape and type is checked; nothing is loaded."""
EXAMPLES = """  clover-rt info
  clover-rt info path/to/checkpoint --json"""
SCHEMA = 1
SHOWN = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `info`."""
    parser.add_argument(
        "path",
        nargs="?",
        type=named,
        metavar="PATH",
        help=f"checkpoint folder, or a built-in model by name (default: {DEFAULT_MODEL})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print the facts; return 0. Raises BadInput or BadCheckpoint."""
    from clover_rt.api import describe

    facts = describe(args.path)
    if args.json:
        import json

        print(json.dumps({"schema": SCHEMA, **facts}, indent=1))
    else:
        print("\n".join(lines(facts)))
    return 0


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts as lines for a reader."""
    rows = {
        "folder": facts["folder"],
        "model type": facts["model_type"],
        "modes": ", ".join(facts["modes"]),
        **weights(facts["weights"]),
        **geometry(facts["geometry"]),
        "block": block(facts["block"]),
        "decoding": decoding(facts["decoding"]),
        "controls": pairs(facts["controls"]),
        "stop ids": ", ".join(f"{s['id']} {s['token'] or ''}".rstrip() for s in facts["stop_ids"]),
        "tokenizer": tokenizer(facts["tokenizer"]),
        "memory": f"{size(facts['memory']['kv_bytes_per_token'])} of KV cache a token, "
        f"{size(facts['memory']['state_bytes_per_sequence'])} of recurrent state a sequence "
        "(precision exact)",
        "not run": ", ".join(f"{n} tensors {p}" for p, n in facts["skipped"].items()) or "nothing",
        "missing": missing(facts["missing_preview"]),
        "warnings": "; ".join(facts["warnings"]),
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        yield f"{name:{width}}  {value or 'none'}"


def weights(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the rows about sizes and types."""
    types = [
        f"{name} {t['tensors']} tensors, {size(t['bytes'])}" for name, t in found["types"].items()
    ]
    count = len(found["files"])
    files = f"{count} file{'s' if count > 1 else ''}"
    return {
        "weights": f"{found['parameters']:,} parameters, {size(found['bytes'])}, {files}",
        "types": "; ".join(types),
    }


def geometry(g: Mapping[str, Any]) -> dict[str, str]:
    """Return the rows about the shape of the model."""
    attention = g["layer_types"].count("full_attention")
    return {
        "layers": f"{g['layers']}: {g['layers'] - attention} Gated DeltaNet, {attention} attention",
        "width": f"{g['hidden_size']}, vocabulary {g['vocab_size']}"
        + (", head tied to the embedding" if g["tied"] else ""),
        "Gated DeltaNet": f"{g['key_heads']} key heads of {g['key_dim']}, {g['value_heads']} value "
        f"heads of {g['value_dim']}, convolution {g['conv_kernel']}",
        "attention": f"{g['heads']} heads and {g['kv_heads']} KV heads of {g['head_dim']}, RoPE on "
        f"{g['rotary_dims']} with theta {g['rope_theta']:g}",
        "experts": f"{g['experts']} of width {g['expert_width']}, {g['experts_per_token']} a token,"
        f" one shared of width {g['shared_width']}",
        "context": f"{g['context']} tokens",
    }


def block(b: Mapping[str, Any] | None) -> str:
    """Return the block settings in a line."""
    if b is None:
        return "none: a causal model"
    mask = f"mask {b['mask_token_id']} {b['mask_token'] or ''}".rstrip()
    coreset = f"coreset top-p {b['coreset_top_p']:g}" if b["coreset_top_p"] < 1 else "no coreset"
    return f"{b['block_size']} rows, {mask}, threshold {b['threshold']:g}, {coreset}"


def decoding(d: Mapping[str, Any]) -> str:
    """Return how the checkpoint wants to be decoded."""
    if d["greedy"]:
        return "greedy"
    return f"sampling: temperature {d['temperature']:g}, top-k {d['top_k']}, top-p {d['top_p']:g}"


def tokenizer(t: Mapping[str, Any] | None) -> str:
    """Return the tokenizer's facts in a line."""
    if t is None:
        return "none: only --prompt-ids works"
    template = "a chat template" if t["chat_template"] else "no chat template"
    return f"{t['size']} ids, {t['control_tokens']} control tokens, {template}"


def missing(names: list[str]) -> str:
    """Return which tensors of the preview are missing, and what that means."""
    if not names:
        return "nothing"
    shown = ", ".join(names[:SHOWN])
    return f"{len(names)} tensors of the preview ({shown}, ...): only mode ar runs"


def pairs(values: Mapping[str, Any]) -> str:
    """Return the fields of an object in a line."""
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def size(nbytes: int) -> str:
    """Return bytes in the largest unit that leaves at least 1, with three digits."""
    value, unit = float(nbytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"
