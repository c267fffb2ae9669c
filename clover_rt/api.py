"""The Python API: load a checkpoint on a backend, generate, read typed events.

    with clover_rt.load("path/to/checkpoint") as model:
        for event in model.generate("Hello"):
            if isinstance(event, clover_rt.TextEvent):
                print(event.text, end="")

This is the only place that wires model, weights, plan, engine and text together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from clover_rt import builtin
from clover_rt.backend import Device
from clover_rt.engine import (
    Accept,
    BlockEvent,
    EndEvent,
    Engine,
    Event,
    Mode,
    ModelFacts,
    PassEvent,
    PrefillEvent,
    Request,
    RoundEvent,
    Sampling,
    Settings,
    TokensEvent,
)
from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.model.build import Capacity, build_graph
from clover_rt.model.config import LayerType, ModelConfig
from clover_rt.plan import Plan, Profile, bind
from clover_rt.plan import explain as explain_plan
from clover_rt.plan.report import explain_text
from clover_rt.plugins import Status, open_device, survey
from clover_rt.spec import PAGE_ROWS, Controls, Precision, StepLayout
from clover_rt.text import Stream, Template, Tokenizer
from clover_rt.weights import Checkpoint, load_weights

Progress = Callable[[int, int, str], None]
Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]
CHAT_END = "<|im_end|>"
# the KV cache may take this share of what is free once the weights are counted
KV_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class TextEvent:
    """Text that was decided: deltas are valid Unicode and only append."""

    text: str


AnyEvent = Event | TextEvent


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    backend: str = "cpu",
    device: str | None = None,
    precision: str = "exact",
    context: int | None = None,
    slots: int = 2,
    strict: bool = False,
    allow_reference: bool = False,
    profile: bool = False,
    on_progress: Progress | None = None,
) -> Model:
    """Open a checkpoint folder, or a built-in model by name, on a backend.

    path       a folder, the name of a built-in model, or None for the default one
    precision  "exact" (float32) or "fast" (the backend's choice)
    context    tokens to reserve a KV cache for; default: the smaller of the model's and what fits
    slots      sequences and snapshots held at once; one is kept to find the cause of a failed pass
    strict     an error if an operation of a layer would run on the host
    on_progress  told (done, total, what) while weights are prepared
    Raises BadInput, BadCheckpoint, BackendUnavailable or Unsupported.
    """
    numerics = _choice("precision", precision, Precision)
    if slots < 1:
        raise BadInput(f"slots={slots} was given", "at least one is needed", "use slots=2")
    folder = _folder(path)
    checkpoint = Checkpoint.open(folder)
    config = checkpoint.config
    tokenizer = _tokenizer(folder, config)
    opened = open_device(backend, device)[1]
    host = opened if backend == "cpu" else open_device("cpu")[1]
    tokens = _context(context, config, opened, numerics, checkpoint.nbytes)
    layout = StepLayout()
    sequences = max(slots - 1, 1)
    draft = config.block.block_size if config.block is not None else 1
    capacity = Capacity(slots, tokens, sequences * -(-tokens // PAGE_ROWS), draft, layout)
    graph = build_graph(config, load_weights(checkpoint), capacity)
    plan = bind(
        graph,
        opened,
        host,
        layout=layout,
        context=tokens,
        precision=numerics,
        strict=strict,
        allow_reference=allow_reference,
        on_progress=on_progress,
    )
    if profile:
        plan.profile = Profile()
    return Model(checkpoint, plan, tokenizer, backend)


class Model:
    """A checkpoint on a device, ready to generate; a context manager that frees the device."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: Plan,
        tokenizer: Tokenizer | None,
        backend: str,
        settings: Settings | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.generation = checkpoint.generation
        self.plan = plan
        self.tokenizer = tokenizer
        self.backend = backend
        self._template = None
        if tokenizer is not None:
            self._template = Template.load(checkpoint.folder, tokenizer)
        self.engine = Engine(plan, self._facts(), settings)

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
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a response: the checkpoint's, and the end of a chat turn."""
        ids = list(self.generation.stop_ids)
        end = self.tokenizer.id_of(CHAT_END) if self.tokenizer is not None else None
        if end is not None and self._template is not None:
            ids.append(end)
        return tuple(dict.fromkeys(ids))

    @property
    def default_mode(self) -> str:
        """`diffusion` for a checkpoint made for it, `ar` for a causal twin."""
        can = self.config.block is not None and not self.checkpoint.missing_preview
        return Mode.DIFFUSION.value if can else Mode.AR.value

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
        if not isinstance(prompt, str) and all(isinstance(i, int) for i in prompt):
            if system is not None or think is not None:
                raise BadInput(
                    what="a prompt of token ids was given with chat options",
                    evidence="system and think belong to the chat template",
                    fix="leave them out, or give text",
                    code="CRT-1015",
                )
            return tuple(int(i) for i in prompt if isinstance(i, int))
        tokenizer = self._need_tokenizer()
        if raw:
            if not isinstance(prompt, str):
                raise BadInput("raw was set for messages", "raw takes a string", "give one string")
            return tuple(tokenizer.encode_scaffold(prompt))
        if self._template is None:
            raise BadInput(
                what="a chat prompt was given",
                evidence=f"{self.checkpoint.folder} has no chat template",
                fix="use raw=True (--raw), or add chat_template.jinja",
                code="CRT-1016",
            )
        messages: list[Mapping[str, Any]]
        if isinstance(prompt, str):
            messages = [{"role": "user", "content": prompt}]
        else:
            messages = [m for m in prompt if isinstance(m, Mapping)]
        return tuple(self._template.encode(messages, system=system, think=think))

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
    ) -> Generator[AnyEvent, None, None]:
        """Return the events of one response; the last is an EndEvent. Closing it cancels.

        prompt      text, chat messages, or token ids
        mode        "diffusion", "ar" or "self-spec"; default: `default_mode`
        temperature 0 or None with a greedy checkpoint: argmax; else sampling with `seed`
        stop        strings that end the text; none of them is returned
        controls    False ignores the checkpoint's penalties and ramps
        What has no effect in the mode is an error. The request is checked before this returns.
        """
        chosen = _choice("mode", mode or self.default_mode, Mode)
        self._check_mode(chosen)
        ids = self.encode(prompt, raw=raw, system=system, think=think)
        if max_new_tokens is not None:
            max_new_tokens = min(max_new_tokens, max(self.plan.context - len(ids), 1))
        request = Request(
            prompt=ids,
            mode=chosen,
            max_tokens=max_new_tokens,
            threshold=threshold,
            block_size=block_size,
            early_end=early_end,
            accept=None if accept is None else _choice("accept", accept, Accept),
            draft_width=draft_width,
            sampling=self._sampling(chosen, temperature, top_k, top_p, seed),
            stops=self.stop_ids,
            ignore_eos=ignore_eos,
            controls=self._controls(controls),
        )
        stream = None
        if self.tokenizer is not None:
            stream = Stream(self.tokenizer, stop, self.stop_ids)
        elif stop:
            self._need_tokenizer()
        return self._events(self.engine.generate(request), stream, chosen)

    def explain(self) -> str:
        """Return the plan as text: where each operation runs and why."""
        return explain_text(self.plan)

    def profile(self) -> str:
        """Return time, launches and bytes by operation; empty unless loaded with profile."""
        return self.plan.profile.text() if self.plan.profile is not None else ""

    def _events(
        self, events: Iterator[Event], stream: Stream | None, mode: Mode
    ) -> Generator[AnyEvent, None, None]:
        text: list[str] = []
        tokens: list[int] = []

        def more(delta: str) -> Iterator[TextEvent]:
            if delta:
                text.append(delta)
                yield TextEvent(delta)

        for event in events:
            if isinstance(event, EndEvent):
                if stream is not None and stream.stopped is None:
                    yield from more(stream.flush())
                yield self._end(event, "".join(text), event.finish_reason, mode)
                return
            yield event
            if isinstance(event, TokensEvent) and stream is not None:
                for i, token in enumerate(event.ids):
                    yield from more(stream.feed([token]))
                    tokens.append(token)
                    if stream.stopped is not None:
                        yield from self._cut(events, tokens, text, mode, len(event.ids) - i - 1)
                        return

    def _cut(
        self,
        events: Iterator[Event],
        tokens: Sequence[int],
        text: Sequence[str],
        mode: Mode,
        dropped: int,
    ) -> Iterator[AnyEvent]:
        """End a run whose text met a stop string: the engine is cancelled, later ids dropped."""
        close = getattr(events, "close", None)
        if close is not None:
            close()
        stats = {"tokens": len(tokens), "dropped_tokens": dropped}
        end = EndEvent(tuple(tokens), "stop", stats)
        yield self._end(end, "".join(text), "stop", mode)

    def _end(self, event: EndEvent, text: str, reason: str, mode: Mode) -> EndEvent:
        report = explain_plan(self.plan)
        about = {
            "mode": mode.value,
            "backend": self.backend,
            "device": report["device"],
            "precision": report["precision"],
            "native_ops": report["native"],
            "ops": report["nodes"],
            "host_ops": [o for o in report["ops"] if o["how"] != "native"],
        }
        return replace(event, text=text, finish_reason=reason, stats={**event.stats, **about})

    def _facts(self) -> ModelFacts:
        block, tokenizer = self.config.block, self.tokenizer
        known = self.config.vocab_size
        if tokenizer is not None:
            known = min(known, tokenizer.size)
        think_end = self.generation.controls.think_end
        return ModelFacts(
            known_ids=known,
            block_size=block.block_size if block is not None else 0,
            mask_id=block.mask_token_id if block is not None else None,
            threshold=block.threshold if block is not None else 0.95,
            think_end_id=think_end if think_end >= 0 else None,
            think_open_id=tokenizer.id_of("<think>") if tokenizer is not None else None,
        )

    def _controls(self, wanted: bool) -> Controls:
        return self.generation.controls if wanted else Controls()

    def _sampling(
        self,
        mode: Mode,
        temperature: float | None,
        top_k: int | None,
        top_p: float | None,
        seed: int,
    ) -> Sampling | None:
        """Return how to sample, None for argmax; asking for top-k or top-p asks for sampling."""
        defaults = self.generation
        asked = top_k is not None or top_p is not None
        greedy = temperature == 0 or (temperature is None and defaults.greedy and not asked)
        if greedy or (mode is Mode.SELF_SPEC and temperature is None and not asked):
            return None
        return Sampling(
            temperature=defaults.temperature if temperature is None else temperature,
            top_k=defaults.top_k if top_k is None else top_k,
            top_p=defaults.top_p if top_p is None else top_p,
            seed=seed,
        )

    def _check_mode(self, mode: Mode) -> None:
        missing = self.checkpoint.missing_preview
        if mode is Mode.AR or (self.config.block is not None and not missing):
            return
        why = f"{self.config.model_type} has no block settings"
        if missing:
            why = f"{len(missing)} preview tensors are missing, such as {missing[0]}"
        raise BadCheckpoint(
            what=f"mode {mode.value} was asked of {self.checkpoint.folder}",
            evidence=why,
            fix="use mode ar, or a checkpoint with the block operator's tensors",
            code="CRT-1170",
        )

    def _need_tokenizer(self) -> Tokenizer:
        return self.tokenizer or Tokenizer.load(self.checkpoint.folder)


def _folder(path: str | os.PathLike[str] | None) -> Path:
    if path is None:
        return builtin.path()
    if str(path) in builtin.NAMES and not Path(path).exists():
        return builtin.path(str(path))
    return Path(path)


def _tokenizer(folder: Path, config: ModelConfig) -> Tokenizer | None:
    """Return the folder's tokenizer, checked against the config; None where there is none."""
    if not (folder / "tokenizer.json").is_file():
        return None
    tokenizer = Tokenizer.load(folder)
    if config.block is not None:
        tokenizer.check_mask(config.block.mask_token_id)
    return tokenizer


def _context(
    wanted: int | None, config: ModelConfig, device: Device, precision: Precision, weights: int
) -> int:
    """Return the tokens to reserve for: as asked, or the smaller of the model's and what fits."""
    if wanted is not None:
        if not 1 <= wanted <= config.context:
            raise BadInput(
                what=f"a context of {wanted} tokens was asked for",
                evidence=f"the model takes 1 to {config.context}",
                fix=f"use a context of at most {config.context}",
                code="CRT-1017",
            )
        return wanted
    layers = sum(kind is LayerType.ATTENTION for kind in config.layer_types)
    item = 2 if device.dtypes(precision)[1] in ("bfloat16", "float16") else 4
    per_token = layers * 2 * config.kv_heads * config.head_dim * item
    free = device.memory().free
    if not free or not per_token:
        return config.context
    fits = int(max(free - weights, 0) * KV_SHARE) // per_token // PAGE_ROWS * PAGE_ROWS
    return min(config.context, max(fits, PAGE_ROWS))


def _choice(name: str, value: str, kind: Any) -> Any:
    """Return the member of an enum with this value, or raise with the list of them."""
    known = [member.value for member in kind]
    if value not in known:
        raise BadInput(
            what=f"{name} {value!r} was asked for",
            evidence=f"known: {', '.join(known)}",
            fix=f"use one of these for {name}",
            code="CRT-1018",
        )
    return kind(value)


__all__ = [
    "AnyEvent",
    "BlockEvent",
    "EndEvent",
    "Model",
    "PassEvent",
    "PrefillEvent",
    "RoundEvent",
    "Status",
    "TextEvent",
    "TokensEvent",
    "load",
    "survey",
]
