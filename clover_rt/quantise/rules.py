"""Which tensor of a checkpoint is stored in which format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.fit.weights import MATRICES, class_of
from clover_rt.model.names import HEAD, Part, Stored, split_expert, stored_tensors
from clover_rt.spec import Format
from clover_rt.spec.weight import GROUPS
from clover_rt.weights import Checkpoint, View, load_weights
from clover_rt.weights.tensor_file import TensorView

SHOWN = 5
FINE = ("embed", "head")
"""What is q8 where the rest is q4: an eighth of the error for a fortieth of the size."""

# the last part of the logical name of what is not stored as one weight
LAST = {Part.QUERIES: "q", Part.FUSED: "expert_gate", Part.DOWN: "expert_down"}
KEPT = {"q8": Format.Q8, "bf16": None}


@dataclass(frozen=True, slots=True)
class Keep:
    """A rule of --keep: tensors whose stored name matches the glob, and their format.

    format  None for as they are
    """

    glob: str
    format: Format | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A stored tensor and what becomes of it.

    name      its name in the file
    weight    the logical weight, such as `layers.3.expert_up`, that it belongs to
    format    q4 or q8, or None for as it is
    group     values that share a scale; 0 where it stays as it is
    """

    name: str
    view: TensorView
    weight: str
    format: Format | None
    group: int

    @property
    def kind(self) -> str:
        """The class of tensors, such as experts."""
        return class_of(self.weight)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the result."""
        if self.format is None:
            return self.view.nbytes
        count = self.parameters
        codes = count // 2 if self.format is Format.Q4 else count
        return codes + 2 * (count // self.group)

    @property
    def parameters(self) -> int:
        return math.prod(self.view.shape)


def keep_rule(text: str) -> Keep:
    """Return the rule in `GLOB=q8` or `GLOB=bf16`; raises BadInput (CRT-1202)."""
    glob, equals, kept = text.rpartition("=")
    if not equals or not glob or kept not in KEPT:
        raise BadInput(
            what=f"--keep {text!r} was given",
            evidence="a rule is a glob over tensor names, '=', and q8 or bf16",
            fix="write for example --keep 'lm_head.weight=bf16' or --keep '*.self_attn.*=q8'",
            code="CRT-1202",
        )
    return Keep(glob, KEPT[kept])


def choose(
    checkpoint: Checkpoint, storage: Format, group: int, keep: Sequence[Keep]
) -> list[Choice]:
    """Return the tensors of a checkpoint in the order of the result, each with its format.

    The first rule that matches a tensor decides; else matrices get the format asked for, but
    embeddings and head at least q8, and everything else stays as it is.
    Raises BadInput: CRT-1201 a rule without effect, CRT-1203 a group that does not divide K,
    CRT-1204 experts of a layer in several formats. Raises BadCheckpoint: CRT-1200 a source that is
    quantised, and those of `load_weights`.
    """
    load_weights(checkpoint)
    choices = []
    used: set[Keep] = set()
    for name, view, weight in _stored(checkpoint):
        if not isinstance(view, TensorView):
            raise BadCheckpoint(
                what=f"the checkpoint in {checkpoint.folder} is quantised already",
                evidence=f"{name!r} in {view.file.path.name} is {view.format.value}",
                fix="quantise the checkpoint that it was made from: a second rounding adds error",
                code="CRT-1200",
            )
        last = weight.rsplit(".", 1)[-1]
        found: Format | None = None
        if last in MATRICES:
            found = Format.Q8 if last in FINE else storage
            matching = [k for k in keep if fnmatchcase(name, k.glob)]
            if matching:
                without = matching[1].format if matching[1:] else found
                found = matching[0].format
                if found is not without:
                    used.add(matching[0])
        choices.append(Choice(name, view, weight, found, _group(found, group)))
    _refuse_idle(keep, used, choices)
    _refuse_odd(choices)
    _refuse_mixed(choices)
    return choices


def _stored(checkpoint: Checkpoint) -> Iterator[tuple[str, View, str]]:
    """Yield (name, view, logical weight) of every tensor that is read."""
    tensors = checkpoint.tensors
    for stored in stored_tensors(checkpoint.config):
        name = stored.name if stored.name == HEAD else checkpoint.prefix + stored.name
        weight = stored.logical + LAST.get(stored.part, "")
        if name in tensors:
            yield name, tensors[name], weight
        elif stored.part in (Part.FUSED, Part.DOWN):
            yield from _split(checkpoint, stored)


def _split(checkpoint: Checkpoint, stored: Stored) -> Iterator[tuple[str, View, str]]:
    for projection in ("down",) if stored.part is Part.DOWN else ("gate", "up"):
        for expert in range(stored.shape[0]):
            name = checkpoint.prefix + split_expert(stored.logical, expert, projection)
            yield name, checkpoint.tensors[name], f"{stored.logical}expert_{projection}"


def _group(storage: Format | None, group: int) -> int:
    if storage is None:
        return 0
    return group if storage is Format.Q4 else GROUPS[storage][0]


def _refuse_idle(keep: Sequence[Keep], used: set[Keep], choices: Sequence[Choice]) -> None:
    for rule in keep:
        if rule in used:
            continue
        held = [c.name for c in choices if fnmatchcase(c.name, rule.glob)]
        found = f"no tensor of the checkpoint matches {rule.glob!r}"
        if held:
            found = f"{held[0]!r} is stored the same way without it"
        raise BadInput(
            what=f"a rule of --keep for {rule.glob!r} has no effect",
            evidence=found,
            fix="`clover-rt quantize ... --dry-run` shows what is quantised; take the rule out",
            code="CRT-1201",
        )


def _refuse_odd(choices: Sequence[Choice]) -> None:
    odd = [c for c in choices if c.format is not None and c.view.shape[-1] % c.group]
    if not odd:
        return
    shown = "; ".join(f"{c.name} has K={c.view.shape[-1]}" for c in odd[:SHOWN])
    more = f"; and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
    raise BadInput(
        what=f"groups of {odd[0].group} were asked for",
        evidence=f"they do not divide the rows of {len(odd)} tensors: {shown}{more}",
        fix="choose a smaller --group, or keep these tensors with --keep 'GLOB=bf16'",
        code="CRT-1203",
    )


def _refuse_mixed(choices: Sequence[Choice]) -> None:
    formats: dict[str, Format | None] = {}
    for choice in choices:
        if formats.setdefault(choice.weight, choice.format) is not choice.format:
            raise BadInput(
                what=f"the experts of {choice.weight} would be stored in several formats",
                evidence=f"{choice.name!r} differs from those before it",
                fix="write --keep globs that take in every expert of a layer, with '*' for it",
                code="CRT-1204",
            )
