"""From a checkpoint's tensors to the weights of the graph: names, shapes and types checked."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from clover_rt.errors import BadCheckpoint
from clover_rt.model.config import ModelConfig
from clover_rt.model.names import HEAD, PREFIXES, Part, Stored, split_expert, stored_tensors
from clover_rt.spec import HostWeight, Weight
from clover_rt.weights.checkpoint import Checkpoint
from clover_rt.weights.findings import Findings
from clover_rt.weights.packed import PackedView, View
from clover_rt.weights.pieces import Releaser, SplitExperts, second_axis

Shape = tuple[int, ...]
SPLIT = re.compile(r"\.mlp\.experts\.\d+\.(?P<projection>gate|up|down)_proj\.weight\Z")


def load_weights(checkpoint: Checkpoint) -> dict[str, HostWeight]:
    """Return the weights of the graph by logical name, over the mapped files; reads no data.

    shapes, with D hidden, C conv channels, E experts, F and Fs widths, H value heads
      embed, head [V, D] (the same pieces where tied), norm [D], and a layer `layers.{i}.`:
      input_norm, post_norm [D]
      GDN        qkv [C, D], z, a, b, conv [C, kernel], A_log, dt_bias [H], norm [value_dim],
                 out; and unless `checkpoint.missing_preview`: right [C, kernel - 1],
                 logit_scale, history_bias, history_c [H]
      attention  q, gate [heads * head_dim, D] (pieces a head), k, v, o, q_norm, k_norm
      MoE        router [E, D], expert_gate, expert_up [E, F, D], expert_down [E, D, F],
                 shared_gate, shared_up [Fs, D], shared_down [D, Fs], shared_scale [1, D]

    Raises one BadCheckpoint with every tensor that is missing (CRT-1160), unknown (CRT-1161), of
    a wrong shape (CRT-1162) or type (CRT-1163), or CRT-1165 where these meet; CRT-1199 where one
    layer's experts are quantised in several ways.
    """
    return _Loader(checkpoint).load()


class _Loader:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config: ModelConfig = checkpoint.config
        self.tensors = checkpoint.tensors
        self.prefix = checkpoint.prefix
        self.lacks_preview = bool(checkpoint.missing_preview)
        files = {id(v.file): v.file for v in self.tensors.values()}
        self.release = Releaser(files.values())
        self.findings = Findings(checkpoint.folder)
        self.used: set[str] = set()
        # (layer, projection) of every tensor of the per-expert layout
        self.split = {
            (name[len(self.prefix) : at.start() + 1], at["projection"])
            for name in self.tensors
            if (at := SPLIT.search(name)) and name.startswith(self.prefix)
        }
        self.weights: dict[str, HostWeight] = {}

    def load(self) -> dict[str, HostWeight]:
        for stored in stored_tensors(self.config):
            if self.findings.enough:
                break
            if stored.part is Part.QUERIES:
                self._queries(stored)
            elif stored.part in (Part.FUSED, Part.DOWN):
                self._experts(stored)
            elif stored.part is Part.WHOLE or not self.lacks_preview:
                self._whole(stored)
        for name in sorted(self.tensors.keys() - self.used):
            note = "the head, but tie_word_embeddings is true" if name == HEAD else ""
            self.findings.unknown(name, self.tensors[name], note)
        self.findings.finish(self.tensors, PREFIXES)
        if self.config.tied:
            self.weights["head"] = self.weights["embed"]
        return self.weights

    def _whole(self, stored: Stored) -> None:
        name = self._full(stored.name)
        view = self._take(name, stored.accepted, stored.any_shape)
        if view is None:
            return
        weight = view.weight
        if weight.shape != stored.shape:
            weight = Weight(weight.format, stored.shape, weight.codes.reshape(stored.shape))
        self._add(stored.logical, name, stored.shape, [weight])

    def _queries(self, stored: Stored) -> None:
        """Take the heads' query and gate rows apart: rows of one head lie together."""
        name = self._full(stored.name)
        view = self._take(name, stored.accepted)
        if view is None:
            return
        heads, head_dim, d = self.config.heads, self.config.head_dim, self.config.hidden_size
        weight = view.weight
        for half, logical in enumerate(("q", "gate")):
            starts = [(2 * head + half) * head_dim for head in range(heads)]
            pieces = [weight[start : start + head_dim] for start in starts]
            self._add(stored.logical + logical, name, (heads * head_dim, d), pieces)

    def _experts(self, stored: Stored) -> None:
        """Take a fused tensor where there is one, else the tensors of the experts."""
        name = self._full(stored.name)
        down = stored.part is Part.DOWN
        projections = ("down",) if down else ("gate", "up")
        if name not in self.tensors and self._any_split(stored, projections):
            for projection in projections:
                self._split(stored, projection)
            return
        view = self._take(name, stored.accepted)
        if view is None:
            return
        if down:
            self._add(stored.logical + "expert_down", name, view.shape, [view.weight])
            return
        experts, width, d = view.shape[0], view.shape[1] // 2, view.shape[2]
        for projection, rows in (("gate", slice(0, width)), ("up", slice(width, None))):
            half = second_axis(view.weight, rows)
            self._add(f"{stored.logical}expert_{projection}", name, (experts, width, d), [half])

    def _any_split(self, stored: Stored, projections: Sequence[str]) -> bool:
        # by the names that are there: the number of experts is only what config.json claims
        return any((stored.logical, p) in self.split for p in projections)

    def _split(self, stored: Stored, projection: str) -> None:
        """Take one projection of every expert."""
        layer, (experts, rows, columns) = stored.logical, stored.shape
        shape = (rows, columns) if projection == "down" else (rows // 2, columns)
        accepted = (shape,)
        views = []
        for expert in range(experts):
            if self.findings.enough:
                return
            view = self._take(self._full(split_expert(layer, expert, projection)), accepted)
            if view is not None:
                views.append(view)
        if len(views) == experts:
            name = f"{self.prefix}{layer}mlp.experts.*.{projection}_proj.weight"
            _check_alike(name, views)
            pieces = SplitExperts(views)
            self._add(f"{layer}expert_{projection}", name, (experts, *shape), pieces)

    def _take(self, name: str, accepted: tuple[Shape, ...], any_shape: bool = False) -> View | None:
        """Return a tensor of a right shape and a readable type, or note what is wrong with it."""
        view = self.tensors.get(name)
        if view is None:
            self.findings.missing(name, accepted[0])
            return None
        self.used.add(name)
        shape = view.shape
        if isinstance(view, PackedView):
            # groups lie along K, so nothing but the logical shape will do
            accepted, any_shape = accepted[:1], False
        if shape not in accepted and not (any_shape and math.prod(shape) == math.prod(accepted[0])):
            self.findings.wrong_shape(name, view, accepted)
            return None
        if view.format is None:
            self.findings.wrong_type(name, view)
            return None
        return view

    def _full(self, name: str) -> str:
        return name if name == HEAD else self.prefix + name

    def _add(self, logical: str, name: str, shape: Shape, pieces: Sequence[Weight]) -> None:
        # experts of mixed types have the format that their pieces are converted to
        storage = pieces.format if isinstance(pieces, SplitExperts) else pieces[0].format
        group = pieces[0].group
        self.weights[logical] = HostWeight(name, storage, shape, pieces, group, self.release)


def _check_alike(name: str, views: Sequence[View]) -> None:
    """Raise unless the experts are all floats, or all quantised in the same way."""
    kinds = {f"{v.dtype}-{v.group}" if isinstance(v, PackedView) else "floats": v for v in views}
    if len(kinds) > 1:
        shown = "; ".join(f"{kind} in {v.file.path.name}" for kind, v in kinds.items())
        raise BadCheckpoint(
            what=f"the experts {name} cannot be read as one weight",
            evidence=f"they are stored in several formats: {shown}",
            fix="quantise the experts of one layer alike",
            code="CRT-1199",
        )
