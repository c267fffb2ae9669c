"""Flags that contradict each other or would do nothing are errors, not surprises."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from clover_rt.errors import BadInput

MODES_OF = {
    "threshold": ("diffusion",),
    "block_size": ("diffusion",),
    "debug_blocks": ("diffusion",),
    "show": ("diffusion", "self-spec"),
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
WITH_EXAMPLES = ("examples", "model", "json")
SPELLED = {"think": "--think or --no-think", "controls": "--no-controls", "prompt": "PROMPT"}
ALWAYS = {"backend": "cpu", "precision": "exact"}
"""Flags whose value does not tell whether they were given."""


def check_flags(args: argparse.Namespace) -> None:
    """Raise BadInput (CRT-1011) for a flag that has no effect beside the others."""
    # without --mode the checkpoint decides between these two
    possible = ("diffusion", "ar") if args.mode is None else (args.mode,)
    check_modes(args, possible, "no --mode, which means diffusion or ar")
    given = _given(args)
    for source in ("raw", "prompt_ids"):
        if source in given:
            for name in ("raw", *CHAT_ONLY) if source == "prompt_ids" else CHAT_ONLY:
                if name in given:
                    beside = f"{_flag(source)}, which uses no chat template"
                    raise no_effect(name, beside, "leave one of them out")
    if args.temperature == 0:
        for name in SAMPLING_ONLY:
            if name in given:
                raise no_effect(name, "--temperature 0, which is greedy", "leave one of them out")
    if args.show and args.json:
        raise no_effect("show", "--json, which draws nothing", "leave one of them out")


def check_examples(args: argparse.Namespace) -> None:
    """Raise BadInput (CRT-1011) for what has no effect beside --examples, which runs nothing."""
    for name in sorted(_given(args) - set(WITH_EXAMPLES)):
        if ALWAYS.get(name) != getattr(args, name) and name not in ("command", "main"):
            raise no_effect(name, "--examples, which runs nothing", "leave one of them out")


def check_modes(args: argparse.Namespace, possible: Sequence[str], chosen: str) -> None:
    """Raise BadInput (CRT-1011) for a flag without effect in every one of the possible modes.

    chosen  how the modes came about, where --mode does not say it
    """
    given = _given(args)
    # greedy on purpose, where a checkpoint samples by default: each mode takes that
    if args.temperature == 0:
        given.discard("temperature")
    beside = f"--mode {args.mode}" if args.mode else chosen
    for name, modes in MODES_OF.items():
        if name in given and not set(modes) & set(possible):
            raise no_effect(name, beside, f"leave it out, or use --mode {' or '.join(modes)}")


def check_seed(args: argparse.Namespace, is_greedy: bool) -> None:
    """Raise BadInput (CRT-1011) for a seed where nothing is sampled: the checkpoint is greedy."""
    asked = (args.temperature, args.top_k, args.top_p)
    if args.seed is not None and is_greedy and asked == (None, None, None):
        beside = "greedy decoding, this checkpoint's default"
        raise no_effect("seed", beside, "leave it out, or sample with --temperature")


def no_effect(name: str, beside: str, fix: str) -> BadInput:
    """Return the error for a flag that would be ignored."""
    return BadInput(
        what=f"{_flag(name)} was given",
        evidence=f"it has no effect with {beside}",
        fix=fix,
        code="CRT-1011",
    )


def _given(args: argparse.Namespace) -> set[str]:
    # a switch that was not thrown is False; --no-think and --no-controls were thrown
    return {
        name
        for name, value in vars(args).items()
        if value is not None and (value is not False or name in ("think", "controls"))
    }


def _flag(name: str) -> str:
    return SPELLED.get(name, "--" + name.replace("_", "-"))
