"""A checkpoint on a device: requests to responses."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from clover_rt.api.order import Order, Prompt, encode, order
from clover_rt.api.response import Response
from clover_rt.api.source import Source
from clover_rt.engine import Engine, Request, Settings
from clover_rt.plan import Plan, explain
from clover_rt.plan.report import explain_text
from clover_rt.text import Stream


class Model:
    """A checkpoint on a device, ready to generate; a context manager that frees the device."""

    def __init__(
        self, source: Source, plan: Plan, backend: str, settings: Settings | None = None
    ) -> None:
        self.source = source
        self.plan = plan
        self.backend = backend
        self.engine = Engine(plan, source.facts, settings)

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
        """Free the device."""
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

    def generate(
        self,
        prompt: Prompt,
        *,
        mode: str | None = None,
        raw: bool = False,
        system: str | None = None,
        think: bool | None = None,
        max_new_tokens: int | None = 256,
        threshold: float | None = None,
        block_size: int | None = None,
        accept: str | None = None,
        draft_width: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        controls: bool = True,
        ignore_eos: bool = False,
        early_end: bool | None = None,
    ) -> Response:
        """Return the events of one response; the last is an EndEvent. `cancel` ends it early.

        prompt      text, chat messages, or token ids
        mode        "diffusion", "ar" or "self-spec"; default: `default_mode`
        temperature 0 or None with a greedy checkpoint: argmax; else sampling with `seed`
        stop        strings that end the text; none of them is returned
        controls    False ignores the checkpoint's penalties and ramps
        What has no effect in the mode is an error. The request is checked before this returns.
        """
        return self.run(
            order(
                self.source,
                self.plan,
                prompt,
                mode=mode,
                raw=raw,
                system=system,
                think=think,
                max_new_tokens=max_new_tokens,
                threshold=threshold,
                block_size=block_size,
                accept=accept,
                draft_width=draft_width,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                seed=seed,
                stop=stop,
                controls=controls,
                ignore_eos=ignore_eos,
                early_end=early_end,
            )
        )

    def run(self, order: Order) -> Response:
        """Return the response to a request that was checked before; see `generate`."""
        stream = None
        if self.source.tokenizer is not None:
            stream = Stream(self.source.tokenizer, order.stop, self.source.stop_ids)
        return Response(self.engine.generate(order.request), stream, self._about(order.request))

    def explain(self) -> str:
        """Return the plan as text: where each operation runs and why."""
        return explain_text(self.plan)

    def profile(self) -> str:
        """Return time, launches and bytes by operation; empty unless loaded with profile."""
        return self.plan.profile.text() if self.plan.profile is not None else ""

    def _about(self, request: Request) -> dict[str, Any]:
        report = explain(self.plan)
        return {
            "mode": request.mode.value,
            "backend": self.backend,
            "device": report["device"],
            "precision": report["precision"],
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
