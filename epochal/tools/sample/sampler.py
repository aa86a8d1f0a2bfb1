"""Answers prompts with a checkpoint of a run, one after the other, and takes newer checkpoints in between.

The rule kept here: an answer comes from one replica. A newer one is read while answers are made, and takes its place
between two of them.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.config.model_table import Architecture
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidInput, Refused
from epochal.state.model.tensors import TensorLayout
from epochal.state.refusals import Refusal
from epochal.tools.checkpoints.checkpoint_stream import read_parameters
from epochal.tools.checkpoints.each_checkpoint import Say, follow_checkpoints, take_checkpoint
from epochal.tools.checkpoints.model_of_run import model_of_run
from epochal.tools.checkpoints.readable_run import RunView, WatchedRun
from epochal.tools.sample.stop_text import StopText, check_stops
from epochal.tools.sample.text_tokens import TextOptions, TextTokens, text_tokens_of
from epochal.trainers.continuation import ChoiceOptions, Continuation, ContinuingLearner, TokenChoice
from epochal.trainers.learner import Learner
from epochal.trainers.torch.torch_options import TorchOptions

MAX_WAITING = 16
"""Maximum number of prompts that wait for the answers before theirs."""
RETRY_AFTER_S = 5.0
"""Time after which a prompt that found no room, or no checkpoint, may come again."""
MAX_PROMPT_CHARACTERS = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """How a run's checkpoints answer.

    Attributes:
        permissions: what the run's documents may use of this machine.
        text: how text becomes tokens.
        torch: how a model of torch computes; None for the defaults.
    """

    permissions: Permissions
    text: TextOptions = field(default_factory=TextOptions)
    torch: TorchOptions | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue, or a chat to answer.

    Attributes:
        text: that is continued; or messages, JSON, to which the assistant's next one is wanted.
        choice: how tokens are chosen.
        stops: texts at which the answer ends, without them.
    """

    text: str | Sequence[Any]
    choice: ChoiceOptions = field(default_factory=ChoiceOptions)
    stops: tuple[str, ...] = ()

    @property
    def is_chat(self) -> bool:
        """Whether it is messages."""
        return not isinstance(self.text, str)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The parts that are the same for every checkpoint: the tokens, and the model with its layout."""

    tokens: TextTokens
    learner: Learner
    layout: TensorLayout


class ModelAnswer:
    """An answer while it is made.

    Attributes:
        step: of the replica that makes it.
        prompt_tokens: number of the prompt's tokens that the model reads.
        cut_tokens: number of those at its beginning that it does not, because its context is full.
        tokens: number of tokens that have been chosen, with that which ended the answer.
        finish_reason: `stop` at a stop text, or the end of a document or turn; `length` where there is no room for
            more tokens. None before it has ended.
    """

    def __init__(self, opened: _Opened, step: int, prompt: Prompt, worker: WorkerThread) -> None:
        tokens = opened.tokens
        given = tokens.encode_chat(list(prompt.text)) if prompt.is_chat else tokens.encode(str(prompt.text))
        stops = (*prompt.stops, *([tokens.turn_end] if prompt.is_chat and tokens.turn_end else []))
        self._worker = worker
        self._tokens = tokens
        self._stops = StopText(stops)
        self._choice = TokenChoice(prompt.choice)
        assert isinstance(opened.learner, ContinuingLearner), "`_open` refuses others"
        self._sequence = opened.learner.continuation()
        self._next = _kept(given, self._sequence, prompt.choice.max_tokens)
        context = self._sequence.context
        self._room = min(
            prompt.choice.max_tokens, (context or len(self._next) + prompt.choice.max_tokens) - len(self._next)
        )
        self.step = step
        self.prompt_tokens = len(self._next)
        self.cut_tokens = len(given) - len(self._next)
        self.tokens = 0
        self.finish_reason: str | None = None

    async def pieces(self) -> AsyncGenerator[str, None]:
        """Yield the answer's text as it is made. Raise `TrainerFailed` if the model cannot continue."""
        reader = self._tokens.reader()
        while self.tokens < self._room:
            token = await self._worker.run(self._choose)
            self.tokens += 1
            if token in self._tokens.ends:
                self.finish_reason = "stop"
                break
            yield self._stops.add(reader.add(token))
            if self._stops.is_reached:
                break
            self._next = [token]
        yield self._stops.add(reader.end()) + self._stops.end()
        self.finish_reason = "stop" if self._stops.is_reached else self.finish_reason or "length"

    def _choose(self) -> int:
        return self._choice.of(self._sequence.logits(self._next)[: self._tokens.vocabulary])


def _kept(tokens: list[int], sequence: Continuation, max_tokens: int) -> list[int]:
    """Return the end of a prompt that leaves room for the answer, or takes half of the model's context."""
    if sequence.context is None:
        return tokens
    return tokens[-max(1, sequence.context - max_tokens, sequence.context // 2) :]


class Sampler:
    """Answers prompts with a run's checkpoints. Use it as a context."""

    def __init__(self, run: WatchedRun, options: SamplerOptions, say: Say) -> None:
        self._run = run
        self._options = options
        self._say = say
        self._worker = WorkerThread("epochal-sample")
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._opened: _Opened | None = None
        self._loaded: CheckpointRef | None = None
        """The checkpoint that the learner holds."""
        self._has_loaded = asyncio.Event()

    async def __aenter__(self) -> "Sampler":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.aclose()

    @property
    def step(self) -> int | None:
        """The step of the replica that answers; None before there is one."""
        return None if self._loaded is None else self._loaded.step

    async def take(self, step: int | None = None) -> None:
        """Take the checkpoint of a step, or the newest, for the answers that follow.

        Raises:
            InvalidInput: there is no such checkpoint, no tokenizer or no base, or the model predicts no tokens.
            TrainerFailed: there is no memory for it.
        """
        await take_checkpoint(self._run, step, self._take)

    async def follow(self, policy: RetryPolicy, *, ends: bool = True) -> None:
        """Take the newest checkpoint, and every later one.

        Args:
            policy: how long to retry when the coordinator fails.
            ends: whether that ends with the run, which may still go back.
        """
        await follow_checkpoints(self._run, self._take, policy, self._say, ends=ends)

    async def wait(self, policy: RetryPolicy) -> None:
        """Take the newest checkpoint, as soon as there is one. Raise `InvalidInput` if the run ends without one."""
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self.follow(policy))
            loaded = tasks.create_task(self._has_loaded.wait())
            await asyncio.wait((following, loaded), return_when=asyncio.FIRST_COMPLETED)
            loaded.cancel()
            following.cancel()
        await self.take()

    @contextlib.asynccontextmanager
    async def answering(self, prompt: Prompt) -> AsyncIterator[ModelAnswer]:
        """Yield the answer to a prompt, after those to earlier prompts.

        Raises:
            InvalidInput: the prompt cannot be answered; the user's fault.
            Refused: `overloaded` if too many prompts wait, or there is no checkpoint yet.
        """
        check_stops(prompt.stops)
        if isinstance(prompt.text, str) and len(prompt.text) > MAX_PROMPT_CHARACTERS:
            raise InvalidInput(f"a prompt of {len(prompt.text)} characters; allowed: {MAX_PROMPT_CHARACTERS}")
        if self._waiting > MAX_WAITING:
            reason = f"{MAX_WAITING} prompts are waiting"
            raise Refused(Refusal.OVERLOADED, reason, retry_after_s=RETRY_AFTER_S)
        self._waiting += 1
        try:
            async with self._turn:
                if self._opened is None or self._loaded is None:
                    raise Refused(Refusal.OVERLOADED, "the run has no checkpoint yet", retry_after_s=RETRY_AFTER_S)
                step = self._loaded.step
                yield await self._worker.run(partial(ModelAnswer, self._opened, step, prompt, self._worker))
        finally:
            self._waiting -= 1

    async def _take(self, view: RunView, reference: CheckpointRef) -> None:
        if reference == self._loaded:
            return
        opened = self._opened = self._opened or await self._open(view)
        parameters = await read_parameters(self._run, reference, opened.layout)
        async with self._turn:
            self._loaded = None  # of a load that fails nothing is left
            await self._worker.run(partial(opened.learner.load, parameters))
            self._loaded = reference
        self._has_loaded.set()
        self._say(f"{view.state.run_id}: replica {reference.step} answers")

    async def _open(self, view: RunView) -> _Opened:
        """Open model and tokenizer. The base of an adapter is verified."""
        spec, torch = view.spec, self._options.torch
        if spec.dummy or spec.architecture is Architecture.CUSTOM:
            raise InvalidInput(
                f"the model of run {view.state.run_id} predicts no tokens that are known here; allowed: the embedded "
                "model, and causal language models of transformers"
            )
        model = await asyncio.to_thread(model_of_run, spec, torch, self._options.permissions)
        base = None if torch is None else torch.base
        vocabulary = model.vocabulary or 0
        tokens, said = await asyncio.to_thread(text_tokens_of, view, self._options.text, base, vocabulary)
        if said:
            self._say(said)
        layout = TensorLayout(tuple(sorted(model.shapes.items())))
        return _Opened(tokens, await self._worker.run(model.learner), layout)
