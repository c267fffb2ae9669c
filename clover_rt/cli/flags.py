"""Flags that contradict each other or would do nothing are errors, not surprises."""

from __future__ import annotations

import argparse

from clover_rt.errors import BadInput

MODES_OF = {
    "threshold": ("diffusion",),
    "block_size": ("diffusion",),
    "draft_width": ("self-spec",),
    "accept": ("self-spec",),
    "temperature": ("diffusion", "ar"),
    "top_k": ("diffusion", "ar"),
    "top_p": ("diffusion", "ar"),
    "seed": ("diffusion", "ar"),
}
"""The modes in which a flag has an effect; flags that are not here have one in each."""

CHAT_ONLY = ("system", "think")
SAMPLING_ONLY = ("top_k", "top_p", "seed")


def positive(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def check_flags(args: argparse.Namespace) -> None:
    """Raise BadInput (CRT-1011) for a flag that has no effect beside the others."""
    given = {name for name, value in vars(args).items() if value is not None}
    # greedy on purpose, where a checkpoint samples by default: each mode takes that
    if args.temperature == 0:
        given.discard("temperature")
    # without --mode the checkpoint decides between these two
    possible = ("diffusion", "ar") if args.mode is None else (args.mode,)
    chosen = f"--mode {args.mode}" if args.mode else "no --mode, which means diffusion or ar"
    for name, modes in MODES_OF.items():
        if name in given and not set(modes) & set(possible):
            raise no_effect(name, chosen, f"leave it out, or use --mode {' or '.join(modes)}")
    if args.raw:
        for name in CHAT_ONLY:
            if name in given:
                raise no_effect(name, "--raw, which has no chat template", "leave one of them out")
    if args.temperature == 0:
        for name in SAMPLING_ONLY:
            if name in given:
                raise no_effect(name, "--temperature 0, which is greedy", "leave one of them out")


def no_effect(name: str, beside: str, fix: str) -> BadInput:
    """Return the error for a flag that would be ignored."""
    flag = "--think or --no-think" if name == "think" else "--" + name.replace("_", "-")
    return BadInput(
        what=f"{flag} was given",
        evidence=f"it has no effect with {beside}",
        fix=fix,
        code="CRT-1011",
    )
