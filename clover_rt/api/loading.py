"""A checkpoint on a backend, in two steps: open and check, then allocate."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Unpack

from clover_rt import fit
from clover_rt.api import first_run
from clover_rt.api.choices import choice
from clover_rt.api.model import Model
from clover_rt.api.options import Options
from clover_rt.api.order import Order, Prompt, order
from clover_rt.api.source import Source, open_source
from clover_rt.api.threads import use_threads
from clover_rt.backend import Device
from clover_rt.errors import BadInput
from clover_rt.model.build import Capacity, build_graph
from clover_rt.plan import Profile, Progress, bind
from clover_rt.plugins import open_device
from clover_rt.spec import Precision, StepLayout, TableClass
from clover_rt.weights import check_scales, load_weights


@dataclass(frozen=True)
class Opened:
    """A checkpoint and the device that it will be bound to; nothing is allocated yet.

    capacity  slots, context and pages that `bind` will reserve
    """

    source: Source
    backend: str
    device: Device
    host: Device
    precision: Precision
    capacity: Capacity

    def order(self, prompt: Prompt, **options: Unpack[Options]) -> Order:
        """Return a checked request, see `Model.generate`; raises BadInput or BadCheckpoint."""
        return order(self.source, _Limits(self), prompt, **options)

    def bind(
        self,
        *,
        strict: bool = False,
        allow_reference: bool = False,
        profile: bool = False,
        on_progress: Progress | None = None,
        on_note: first_run.Note | None = None,
    ) -> Model:
        """Allocate, prepare the weights and return the model; see `load`."""
        line = self.device_line()
        if on_note is not None and line:
            on_note(line)
        checkpoint = self.source.checkpoint
        check_scales(checkpoint.tensors)
        first = first_run.check(
            self,
            strict=strict,
            allow_reference=allow_reference,
            on_progress=on_progress,
            on_note=on_note,
        )
        graph = build_graph(self.source.config, load_weights(checkpoint), self.capacity)
        plan = bind(
            graph,
            self.device,
            self.host,
            layout=self.capacity.layout,
            context=self.capacity.context,
            precision=self.precision,
            strict=strict,
            allow_reference=allow_reference,
            on_progress=on_progress,
        )
        if profile:
            plan.profile = Profile()
        return Model(self.source, plan, self.backend, first_run=first)

    def device_line(self) -> str:
        """Return which device was chosen and why, "" where its backend does not say why."""
        info = self.device.info
        if info is None or "chosen" not in info.notes:
            return ""
        engine = f", engine {info.notes['engine']}" if "engine" in info.notes else ""
        return f"{self.backend} on {info.id}: {info.name}{engine}; {info.notes['chosen']}"

    def close(self) -> None:
        """Close the devices of a checkpoint that was not bound."""
        close_all(self.device, self.host)


def close_all(*devices: Device) -> None:
    """Close each device once."""
    for each in {id(d): d for d in devices}.values():
        each.close()


@dataclass(frozen=True)
class _Limits:
    """What a plan will hold at most, before it is bound; the plan checks again."""

    opened: Opened

    @property
    def context(self) -> int:
        return self.opened.capacity.context

    @property
    def vocab_size(self) -> int:
        return self.opened.source.config.vocab_size

    @property
    def widest_draft(self) -> int:
        return self.opened.capacity.draft

    @property
    def layout(self) -> StepLayout:
        return self.opened.capacity.layout

    @property
    def max_rows(self) -> int:
        return self.layout.rows

    def accepts(self, table: TableClass) -> bool:
        return True


def open_model(
    path: str | os.PathLike[str] | None = None,
    *,
    backend: str = "cpu",
    device: str | None = None,
    precision: str = "exact",
    context: int | None = None,
    slots: int = 2,
    threads: int | None = None,
    must_fit: bool = True,
) -> Opened:
    """Open a checkpoint and a device without allocating; see `load` for the arguments.

    must_fit  raise OutOfMemory (CRT-3203) where the device has less free memory than a load takes
    """
    numerics = choice("precision", precision, Precision)
    if slots < 1:
        raise BadInput(
            what=f"slots={slots} was given",
            evidence="at least one is needed",
            fix="use slots=2",
            code="CRT-1019",
        )
    source = open_source(path)
    checkpoint, config = source.checkpoint, source.config
    opened = open_device(backend, device)[1]
    taken = [opened]
    try:
        host = opened if backend == "cpu" else open_device("cpu")[1]
        taken.append(host)
        if threads is not None:
            use_threads(host, threads)
        tokens = fit.context_for(context, config, opened, numerics, checkpoint.nbytes)
        if must_fit:
            weights, setting = load_weights(checkpoint), fit.Setting(numerics, slots)
            fit.check_room(config, weights, opened, host, setting, tokens, checkpoint.folder)
        capacity = fit.capacity_for(config, slots, tokens)
    # whatever it was: nobody else holds the devices yet
    except BaseException:
        close_all(*taken)
        raise
    return Opened(source, backend, opened, host, numerics, capacity)


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    backend: str = "cpu",
    device: str | None = None,
    precision: str = "exact",
    context: int | None = None,
    slots: int = 2,
    threads: int | None = None,
    strict: bool = False,
    allow_reference: bool = False,
    profile: bool = False,
    on_progress: Progress | None = None,
    on_note: first_run.Note | None = None,
) -> Model:
    """Open a checkpoint folder, or a built-in model by name, on a backend.

    path       a folder, the name of a built-in model, or None for the default one
    precision  "exact" (float32) or "fast" (the backend's choice)
    context    tokens to reserve a KV cache for; default: the smaller of the model's and what fits
    slots      sequences and snapshots held at once; one is kept to find the cause of a failed pass
    threads    of the cpu backend, as device or as host; default: CLOVER_RT_CPU_THREADS, or one for
               each core that the process may use
    strict     an error if an operation of a layer would run on the host
    on_progress  told (done, total, what) while weights are prepared, kernels compiled, and steps
               of the first run compared
    on_note    told lines for people as they come: which device and why, its first run
    Before a device runs a checkpoint for the first time, two layers are compared with the cpu's.
    Raises BadInput, BadCheckpoint, BackendUnavailable, OutOfMemory or Unsupported.
    """
    opened = open_model(
        path,
        backend=backend,
        device=device,
        precision=precision,
        context=context,
        slots=slots,
        threads=threads,
    )
    return opened.bind(
        strict=strict,
        allow_reference=allow_reference,
        profile=profile,
        on_progress=on_progress,
        on_note=on_note,
    )
