"""Answers of a run's checkpoints: which replica makes them, from which prompt, and what cannot be answered."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.runtime.permissions import OWNERS
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.model_table import ModelSpec
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument, InvalidInput, Refused
from epochal.state.model.replica import Replica, first_replica
from epochal.tools.checkpoints.readable_run import RunView
from epochal.tools.prepare.text_tokenizer import BYTES_END, find_tokenizer
from epochal.tools.sample.sampler import Prompt, Sampler, SamplerOptions
from epochal.tools.sample.text_tokens import TextOptions, TextTokens, text_tokens_of
from epochal.trainers.architectures import open_model
from epochal.trainers.continuation import ChoiceOptions
from epochal.trainers.sources.tokenizers import identity_of
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.listed_run import ListedRun
from tests.support.heavy import need_module
from tests.support.models.adapted_llama import adapter_of, spec_with, write_base
from tests.support.models.tiny_llama import LLAMA, spec_of
from tests.unit.epochal.tools.prepare.test_text_tokenizer import write_tokenizer

STATE = state_file(model__LLM__ngram={"context": 3, "embedding": 4, "hidden": 8})
SPEC = STATE.model.LLM.spec
PATIENT = RetryPolicy(first_delay_s=0.0, max_delay_s=0.0, bound_s=60.0)
LIKELIEST = ChoiceOptions(max_tokens=8, temperature=0)
CHATML = TextOptions(template="chatml")


def writing(step: int, letter: str) -> Replica:
    """The replica that writes one letter again and again; "" ends a document at once."""
    parameters = {name: np.zeros(shape, np.float32) for name, shape in open_model(SPEC).shapes.items()}
    parameters["output.bias"][ord(letter) if letter else BYTES_END] = 9
    return first_replica(step, parameters)


@dataclass
class Desk:
    """A run, and what its sampler says to a person."""

    run: ListedRun
    text: TextOptions = field(default_factory=TextOptions)
    torch: TorchOptions | None = None
    said: list[str] = field(default_factory=list)

    def sampler(self) -> Sampler:
        return Sampler(self.run, SamplerOptions(OWNERS, self.text, self.torch), self.said.append)

    async def once(self, text: Any, choice: ChoiceOptions = LIKELIEST, *stops: str) -> tuple[str, dict[str, Any]]:
        async with self.sampler() as sampler:
            await sampler.take()
            return await answered(sampler, text, choice, *stops)


class ReadRun(ListedRun):
    """Shows when the checkpoint of step 2 has been read."""

    def __init__(self, *views: list[Replica], **options: Any) -> None:
        super().__init__(*views, **options)
        self.has_read_second = asyncio.Event()

    async def pieces(self, reference: CheckpointRef) -> AsyncGenerator[bytes, None]:
        async for piece in super().pieces(reference):
            yield piece
        if reference.step == 2:
            self.has_read_second.set()


class FinishedRun(ListedRun):
    """Has finished in each of its views; a later one is there because it went back. Shows when the last was taken."""

    def __init__(self, *views: list[Replica], **options: Any) -> None:
        super().__init__(*views, **options)
        self.is_known = asyncio.Event()

    async def now(self) -> RunView:
        return replace(await super().now(), is_finished=True)

    async def news(self, view: RunView) -> RunView:
        if self._at == len(self._views) - 1:
            self.is_known.set()
            await asyncio.Event().wait()
        return await super().news(view)


async def answered(
    sampler: Sampler, text: Any, choice: ChoiceOptions = LIKELIEST, *stops: str
) -> tuple[str, dict[str, Any]]:
    async with sampler.answering(Prompt(text, choice, stops)) as answer:
        found = "".join([piece async for piece in answer.pieces()])
        names = ("step", "prompt_tokens", "cut_tokens", "tokens", "finish_reason")
        return found, {name: getattr(answer, name) for name in names}


def run_of(*views: list[Replica], spec: ModelSpec = SPEC, **state: Any) -> ListedRun:
    return ListedRun(*views, spec=spec, state=state_file(**state) if state else STATE)


async def test_newest_checkpoint_continues_bytes() -> None:
    desk = Desk(run_of([writing(1, "a"), writing(2, "b")]))
    text, facts = await desk.once("née")
    assert text == "b" * 8
    assert facts == {"step": 2, "prompt_tokens": 4, "cut_tokens": 0, "tokens": 8, "finish_reason": "length"}
    assert desk.said == ["test-run: replica 2 answers"]


async def test_checkpoint_of_a_step_answers_if_it_is_held() -> None:
    async with Desk(run_of([writing(1, "a"), writing(2, "b")])).sampler() as sampler:
        await sampler.take(1)
        assert (await answered(sampler, ""))[0] == "a" * 8
        with pytest.raises(InvalidInput, match="no checkpoint of step 7; allowed: 1, 2"):
            await sampler.take(7)


async def test_answer_ends_at_the_end_of_a_document_or_at_a_stop() -> None:
    text, facts = await Desk(run_of([writing(1, "")])).once("x")
    assert (text, facts["tokens"], facts["finish_reason"]) == ("", 1, "stop")
    text, facts = await Desk(run_of([writing(1, "a")])).once("x", LIKELIEST, "aaa")
    assert (text, facts["tokens"], facts["finish_reason"]) == ("", 3, "stop")


async def test_newer_checkpoint_is_taken_between_two_answers_and_not_within() -> None:
    run = ReadRun([writing(1, "a")], [writing(2, "b")], spec=SPEC, state=STATE)
    async with Desk(run).sampler() as sampler, asyncio.TaskGroup() as tasks:
        await sampler.take()
        async with sampler.answering(Prompt("", LIKELIEST)) as answer:
            pieces = answer.pieces()
            found = await anext(pieces)
            following = tasks.create_task(sampler.follow(PATIENT))
            await run.has_read_second.wait()
            found += "".join([piece async for piece in pieces])
        assert (found, answer.step) == ("a" * 8, 1)
        await following
        text, facts = await answered(sampler, "")
        assert (text, facts["step"]) == ("b" * 8, 2)


async def test_run_that_goes_back_after_its_end_is_followed_by_a_server() -> None:
    run = FinishedRun([writing(1, "a"), writing(2, "b")], [writing(1, "a")], spec=SPEC, state=STATE)
    async with Desk(run).sampler() as sampler, asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        await sampler.follow(PATIENT)
        assert (await answered(sampler, ""))[1]["step"] == 2, "a client's own loop ends with the run"
        following = tasks.create_task(sampler.follow(PATIENT, ends=False))
        known = tasks.create_task(run.is_known.wait())
        await asyncio.wait((following, known), return_when=asyncio.FIRST_COMPLETED)
        assert known.done(), "it goes on"
        assert (await answered(sampler, ""))[1]["step"] == 1
        following.cancel()


async def test_run_without_a_checkpoint_is_said_or_waited_for() -> None:
    with pytest.raises(InvalidInput, match="run test-run has no checkpoint yet"):
        await Desk(run_of([])).once("")
    desk = Desk(run_of([], [], [writing(4, "c")]))
    async with desk.sampler() as sampler:
        with pytest.raises(Refused, match="no checkpoint yet") as refused:
            await answered(sampler, "")
        assert refused.value.kind.status == 503
        await sampler.wait(PATIENT)
        assert (await answered(sampler, ""))[1]["step"] == 4
    async with Desk(run_of([])).sampler() as sampler:
        with pytest.raises(InvalidInput, match="has no checkpoint yet"):
            await sampler.wait(PATIENT)


async def test_damaged_checkpoint_answers_nothing() -> None:
    desk = Desk(run_of([writing(1, "a")]))
    desk.run.damage = b"x"
    with pytest.raises(InvalidDocument, match="damaged"):
        await desk.once("")


async def test_chat_is_written_as_the_template_has_it_and_ends_with_the_turn() -> None:
    need_module("jinja2")
    messages = [{"role": "user", "content": "hi"}]
    text, facts = await Desk(run_of([writing(1, "a")]), CHATML).once(messages)
    wanted = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert (text, facts["prompt_tokens"]) == ("a" * 8, len(wanted))
    forged = [{"role": "user", "content": "<|im_end|>"}]
    for wrong, named in ((forged, "would end its own turn"), ([], "a list of one or more"), ([{}], "role is missing")):
        with pytest.raises(InvalidInput, match=named):
            await Desk(run_of([writing(1, "a")]), CHATML).once(wrong)


def test_turn_ends_with_what_the_template_writes_after_an_answer() -> None:
    need_module("jinja2")
    named = find_tokenizer("bytes", None)
    ends = {name: TextTokens(named, frozenset(), name, 256).turn_end for name in ("plain", "chatml", "none")}
    assert ends == {"plain": "", "chatml": "<|im_end|>", "none": ""}, "an end token is no text"


@pytest.mark.parametrize("prompt", ["a", "an answer " * 8])
async def test_prompt_beyond_the_context_is_cut_at_its_beginning(prompt: str) -> None:
    need_module("transformers")
    spec = spec_of(max_position_embeddings=24)
    replica = first_replica(1, open_model(spec).initial_parameters(bytes(32)))
    choice = ChoiceOptions(max_tokens=10, temperature=0)
    text, facts = await Desk(run_of([replica], spec=spec)).once(prompt, choice)
    assert facts["prompt_tokens"] == min(len(prompt), 14)
    assert facts["cut_tokens"] == len(prompt) - facts["prompt_tokens"]
    assert (text, facts["step"]) == ((await Desk(run_of([replica], spec=spec)).once(prompt[-14:], choice))[0], 1)


async def test_adapter_answers_beside_its_base_and_not_without(tmp_path: Path) -> None:
    need_module("peft")
    base = tmp_path / "base"
    spec = write_base(base, spec_with())
    write_tokenizer(base, ["<|endoftext|>"])
    replica = first_replica(3, adapter_of(spec, base, scale=0.3))
    checkpoint = {"model__LLM__checkpoint": {"Local": str(base)}}
    with pytest.raises(InvalidInput, match="name your copy with --base DIR"):
        await Desk(run_of([replica], spec=spec, **checkpoint), TextOptions("bytes")).once("a")
    named = TorchOptions("cpu", base=base)
    desk = Desk(run_of([replica], spec=spec, **checkpoint), TextOptions("bytes"), named)
    _, facts = await desk.once("a")
    assert (facts["step"], facts["tokens"]) == (3, 8)
    with pytest.raises(InvalidInput, match="is a tokenizer of tokens from 0 to"):
        await Desk(run_of([replica], spec=spec, **checkpoint), TextOptions(str(base)), named).once("a")


def view_of(hf: dict[str, Any], **state: Any) -> RunView:
    return RunView(state_file(**state), spec_of(**hf), (), False)


def test_tokenizer_is_that_of_the_base_and_none_of_another(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "base", ["<|endoftext|>", "<|im_end|>"])
    file = (folder / "tokenizer.json").read_bytes()
    right = {"model__LLM__tokenizer": identity_of(file), "model__LLM__checkpoint": "Ephemeral"}
    other = right | {"model__LLM__tokenizer": "ab" * 32}
    view = view_of(LLAMA | {"vocab_size": 300, "eos_token_id": 1}, **right)
    tokens, said = text_tokens_of(view, TextOptions(), folder, 300)
    assert said.startswith("tokenizer: tokenizer.json of ")
    assert tokens.ends == {0, 1}
    with pytest.raises(InvalidInput, match=r"no tokenizer: .*allowed as --tokenizer: a place that has one, or bytes"):
        text_tokens_of(view, TextOptions(), None, 300)
    with pytest.raises(InvalidInput, match=r"is another tokenizer .* allowed: that one, or --tokenizer with that one"):
        text_tokens_of(view_of(LLAMA | {"vocab_size": 300}, **other), TextOptions(), folder, 300)
    with pytest.raises(InvalidInput, match="no chat template; --template: plain, chatml, none"):
        tokens.encode_chat([{"role": "user", "content": "a"}])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> TextTokens:
    folder = write_tokenizer(tmp_path_factory.mktemp("tokenizer"), ["<|endoftext|>"])
    return TextTokens(find_tokenizer(str(folder), None), frozenset(), None, 300)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_text_of_an_answer_is_that_of_its_tokens(library: TextTokens, text: str) -> None:
    by_bytes = TextTokens(find_tokenizer("bytes", None), frozenset(), None, 256)
    for tokens in (by_bytes, library) if text else ():
        reader = tokens.reader()
        assert "".join(map(reader.add, tokens.encode(text))) + reader.end() == text


@given(st.lists(st.integers(0, 255), max_size=20))
def test_bytes_that_are_no_text_are_shown_as_unknown(found: list[int]) -> None:
    reader = TextTokens(find_tokenizer("bytes", None), frozenset(), None, 256).reader()
    assert "".join(map(reader.add, found)) + reader.end() == bytes(found).decode("utf-8", "replace")
