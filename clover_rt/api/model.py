"""A checkpoint on a device: requests to responses."""

from __future__ import annotations

from dataclasses import asdict
from types import TracebackType
from typing import Any, Unpack

from clover_rt.api.first_run import FirstRun
from clover_rt.api.options import Options
from clover_rt.api.order import Order, Prompt, encode, order
from clover_rt.api.response import Response
from clover_rt.api.source import Source
from clover_rt.api.threads import threads_of
from clover_rt.engine import Engine, Request, Settings
from clover_rt.errors import StaleState
from clover_rt.plan import Place, Plan, explain
from clover_rt.plan.report import explain_text
from clover_rt.text import Stream


class Model:
    """A checkpoint on a device, ready to generate; a context manager that frees the device.

    first_run  what the comparison of the device with the cpu came to; None where there is none
    """

    def __init__(
        self,
        source: Source,
        plan: Plan,
        backend: str,
        settings: Settings | None = None,
        first_run: FirstRun | None = None,
    ) -> None:
        self.source = source
        self.plan = plan
        self.backend = backend
        self.first_run = first_run
        self.engine = Engine(plan, source.facts, settings)
        self._is_closed = False

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the device; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self.plan.close()

    @property
    def default_mode(self) -> str:
        """`diffusion` for a checkpoint made for it, `ar` for a causal twin."""
        return self.source.modes[0]

    def encode(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        think: bool | None = None,
    ) -> tuple[int, ...]:
        """Return the ids of a prompt: text or messages through the chat template, or ids as given.

        raw takes text as it is, control tokens included, without the template.
        """
        return encode(self.source, prompt, raw=raw, system=system, think=think)

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Response:
        """Return the events of one response; the last is an EndEvent. `cancel` ends it early.

        prompt      text, chat messages, or token ids
        mode        "diffusion", "ar" or "self-spec"; default: `default_mode`
        raw         True takes text as it is, control tokens included, without the chat template
        system      system prompt of the chat
        think       True or False: whether the model reasons first; default: as the template says
        max_new_tokens  tokens at most; default: 256, or what the context leaves where that is
                    less; None: what the context leaves. More than it leaves is an error.
        threshold   diffusion: rows above this confidence are fixed, 0 to 1
        block_size  diffusion: rows a block, a divisor of the trained size
        early_end   diffusion: False denoises a block to its end although its output is decided
        accept      self-spec: "exact" (default; the text of greedy ar) or "typical" (lossy)
        draft_width  self-spec: rows a draft, a divisor of the trained block size
        temperature  0, or None with a greedy checkpoint: argmax; else sampling
        top_k       sample among so many of the likeliest, at most 64
        top_p       sample within this probability mass
        seed        of sampling; default 0
        stop        a string, or several, that end the text; none of them is returned
        controls    False ignores the checkpoint's penalties and ramps
        ignore_eos  True goes on behind the checkpoint's stop ids
        What has no effect in the mode is an error. The request is checked before this returns.
        Raises BadInput or BadCheckpoint, or StaleState (CRT-4120) for a closed model.
        """
        return self.run(self.order(prompt, **options))

    def order(self, prompt: Prompt, **options: Unpack[Options]) -> Order:
        """Return a checked request for `run`; see `generate`."""
        return order(self.source, self.plan, prompt, **options)

    def run(self, order: Order) -> Response:
        """Return the response to a request that was checked before; see `generate`."""
        if self._is_closed:
            raise StaleState(
                what="a response of a closed model was asked for",
                evidence=f"{self.source.checkpoint.folder} was closed, its device is free",
                fix="load it again, and generate inside the `with` block",
                code="CRT-4120",
            )
        stream = None
        if self.source.tokenizer is not None:
            stream = Stream(self.source.tokenizer, order.stop, self.source.stop_ids)
        return Response(self.engine.generate(order.request), stream, self._about(order.request))

    def report(self) -> dict[str, Any]:
        """Return the plan as plain data: steps by operation, where each runs and why."""
        return explain(self.plan)

    def explain(self) -> str:
        """Return the plan as text: where each operation runs and why."""
        return explain_text(self.plan)

    def profile(self) -> str:
        """Return time, launches and bytes by operation; empty unless loaded with profile."""
        return self.plan.profile.text() if self.plan.profile is not None else ""

    def tally(self) -> dict[str, int]:
        """Return what the device counted since it was opened, by name; empty where it does not."""
        return dict(self.plan.devices[Place.DEVICE].tally())

    def _about(self, request: Request) -> dict[str, Any]:
        report = explain(self.plan)
        info = self.plan.devices[Place.DEVICE].info
        notes = info.notes if info is not None else {}
        first = self.first_run
        return {
            "mode": request.mode.value,
            "backend": self.backend,
            "device": report["device"],
            "device_id": info.id if info is not None else None,
            "engine": notes.get("engine"),
            "chosen": notes.get("chosen"),
            "first_run": asdict(first) if first is not None else None,
            "precision": report["precision"],
            "threads": threads_of(self.plan),
            "context": self.plan.context,
            "prompt_tokens": len(request.prompt),
            "ops": report["nodes"],
            "native_ops": report["native"],
            "host_ops": [
                {"op": o["op"], "steps": o["nodes"], "how": o["how"], "reason": o["reason"]}
                for o in report["ops"]
                if o["how"] != "native"
            ],
        }
