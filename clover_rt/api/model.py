"""A checkpoint on a device: prompts to ids, requests to responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from clover_rt.api.choices import choice
from clover_rt.api.response import Response
from clover_rt.engine import Accept, Engine, Mode, ModelFacts, Request, Sampling, Settings
from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.model.generation import GenerationConfig
from clover_rt.plan import Plan, explain
from clover_rt.plan.report import explain_text
from clover_rt.spec import Controls
from clover_rt.text import Stream, Template, Tokenizer
from clover_rt.weights import Checkpoint

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]
CHAT_END = "<|im_end|>"


class Model:
    """A checkpoint on a device, ready to generate; a context manager that frees the device."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: Plan,
        tokenizer: Tokenizer | None,
        template: Template | None,
        backend: str,
        settings: Settings | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.generation = checkpoint.generation
        self.plan = plan
        self.tokenizer = tokenizer
        self.backend = backend
        self._template = template
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
        return stop_ids(self.generation, self.tokenizer, self._template)

    @property
    def default_mode(self) -> str:
        """`diffusion` for a checkpoint made for it, `ar` for a causal twin."""
        return modes_of(self.checkpoint)[0]

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
                raise BadInput(
                    what="raw was set for messages",
                    evidence="raw takes one string",
                    fix="give one string, or leave raw out",
                    code="CRT-1022",
                )
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
    ) -> Response:
        """Return the events of one response; the last is an EndEvent. `cancel` ends it early.

        prompt      text, chat messages, or token ids
        mode        "diffusion", "ar" or "self-spec"; default: `default_mode`
        temperature 0 or None with a greedy checkpoint: argmax; else sampling with `seed`
        stop        strings that end the text; none of them is returned
        controls    False ignores the checkpoint's penalties and ramps
        What has no effect in the mode is an error. The request is checked before this returns.
        """
        chosen = choice("mode", mode or self.default_mode, Mode)
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
            accept=None if accept is None else choice("accept", accept, Accept),
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
        return Response(self.engine.generate(request), stream, self._about(request))

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
        if mode.value in modes_of(self.checkpoint):
            return
        missing = self.checkpoint.missing_preview
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


def modes_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the modes that a checkpoint can run, its default first."""
    if checkpoint.config.block is None or checkpoint.missing_preview:
        return (Mode.AR.value,)
    return tuple(mode.value for mode in (Mode.DIFFUSION, Mode.AR, Mode.SELF_SPEC))


def stop_ids(
    generation: GenerationConfig, tokenizer: Tokenizer | None, template: Template | None
) -> tuple[int, ...]:
    """Return the ids that end a response: the checkpoint's, and the end of a chat turn."""
    ids = list(generation.stop_ids)
    end = tokenizer.id_of(CHAT_END) if tokenizer is not None and template is not None else None
    if end is not None:
        ids.append(end)
    return tuple(dict.fromkeys(ids))
