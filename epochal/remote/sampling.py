"""A run's checkpoints that answer prompts, from Python. Every call blocks until the answer is complete."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from epochal.remote.background_loop import BackgroundLoop
from epochal.runtime.retry import RetryPolicy
from epochal.tools.checkpoints.each_checkpoint import Say
from epochal.tools.checkpoints.run_address import RunAddress
from epochal.tools.sample.sampler import Prompt, Sampler, SamplerOptions


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer of a run's checkpoint.

    Attributes:
        text: of the answer.
        step: of the replica that answered.
        prompt_tokens: number of the prompt's tokens that the model read.
        cut_tokens: number of those at its beginning that it did not, because its context is full.
        tokens: number of tokens of the answer, with that which ended it.
        finish_reason: `stop` at its end; `length` at the maximum number of tokens, or where the context is full.
    """

    text: str
    step: int
    prompt_tokens: int
    cut_tokens: int
    tokens: int
    finish_reason: str


class RunSampler:
    """Answers prompts with the checkpoints of one run, in a loop of the caller's."""

    def __init__(self, loop: BackgroundLoop, address: RunAddress, options: SamplerOptions, say: Say) -> None:
        self.options = options
        self._loop = loop
        self._address = address
        self._say = say
        self._opened = AsyncExitStack()
        self._sampler: Sampler | None = None

    def take(self, step: int | None, policy: RetryPolicy, *, waits: bool = False) -> None:
        """Take the checkpoint of a step, or the newest; with `waits`, as soon as there is one."""
        self._loop.run(self._take(step, policy, waits))

    def answer(self, prompt: Prompt, show: Callable[[str], None] = lambda _: None) -> Sample:
        """Return the answer to a prompt; `show` receives its text as it is made. Call `take` first."""
        return self._loop.run(self._answer(prompt, show))

    def close(self) -> None:
        """Close what was opened."""
        self._loop.run(self._opened.aclose())

    async def _take(self, step: int | None, policy: RetryPolicy, waits: bool) -> None:
        if self._sampler is None:
            run = await self._opened.enter_async_context(self._address.open(policy))
            self._sampler = await self._opened.enter_async_context(Sampler(run, self.options, self._say))
        await (self._sampler.wait(policy) if waits and self._sampler.step is None else self._sampler.take(step))

    async def _answer(self, prompt: Prompt, show: Callable[[str], None]) -> Sample:
        assert self._sampler is not None, "take first"
        async with self._sampler.answering(prompt) as answer:
            text = ""
            async for piece in answer.pieces():
                text += piece
                show(piece)
        reason = answer.finish_reason or ""
        return Sample(text, answer.step, answer.prompt_tokens, answer.cut_tokens, answer.tokens, reason)
