"""`epochal sample`: a run's newest checkpoint continues text, answers a chat, or serves both over HTTP."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from epochal.cli.options.admin_token import AdminToken
from epochal.cli.options.permission_options import CredentialsForOption
from epochal.cli.options.shared import CoordinatorCaOption, JsonOption
from epochal.cli.options.torch_choice import TorchChoice
from epochal.cli.options.torch_trainer import check_machine
from epochal.cli.output.logs import LogFormat, start_logging
from epochal.cli.output.printing import LISTENING, run_to_end
from epochal.cli.service_manager import serve_until
from epochal.cli.shutdown import interruption
from epochal.remote.background_loop import BackgroundLoop
from epochal.remote.sampling import RunSampler, Sample
from epochal.runtime.clock import SystemClock
from epochal.runtime.connections.shedding import LOOPBACK
from epochal.runtime.http.allowed_hosts import allowed_hosts
from epochal.runtime.http.http_server import Endpoint, serving_app
from epochal.runtime.permissions import OWNERS, Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import CoordinatorUnreachable, EpochalError, InvalidInput
from epochal.state.text.visible import visible
from epochal.tools.checkpoints.run_address import (
    DEFAULT_RECONNECT_S,
    ReconnectOption,
    RunAddress,
    RunArgument,
    following_policy,
)
from epochal.tools.sample.sampler import Prompt, Sampler, SamplerOptions
from epochal.tools.sample.text_tokens import TextOptions
from epochal.trainers.continuation import ChoiceOptions

DEFAULT = ChoiceOptions()
STANDARD_INPUT = "-"
PromptOption = Annotated[
    str | None, typer.Option(help=f"Continue this text; {STANDARD_INPUT} reads it from the standard input.")
]
ChatOption = Annotated[bool, typer.Option("--chat", help="Answer messages, each a line of the standard input.")]
ServeOption = Annotated[
    bool, typer.Option("--serve", help="Serve the newest checkpoint over HTTP, in the shapes of OpenAI's API.")
]
SystemOption = Annotated[str | None, typer.Option(help="With --chat: a system message before the first.")]
StepOption = Annotated[
    int | None, typer.Option(min=0, help="Answer with the checkpoint of this step. Default: the newest.")
]
FollowOption = Annotated[
    bool,
    typer.Option(
        "--follow", help="Wait for the run's first checkpoint; with --chat, take newer ones between messages."
    ),
]
MaxTokensOption = Annotated[int, typer.Option(help="Maximum number of tokens of an answer.")]
TemperatureOption = Annotated[float, typer.Option(help="Divides the logits; 0 takes the likeliest token always.")]
TopPOption = Annotated[float, typer.Option(help="Choose among the fewest tokens whose probabilities add up to this.")]
SeedOption = Annotated[int | None, typer.Option(help="Choose the same tokens again. Default: others each time.")]
StopOption = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="End an answer at this text; repeat for several.")
]
TokenizerOption = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="Tokenizer: a path, hf://…, s3://… or gs://…, or bytes. Default: that of the run's `checkpoint`.",
    ),
]
EndTokenOption = Annotated[
    str | None, typer.Option(help="Text or ID of the token that ends a document, as for `epochal prepare`.")
]
TemplateOption = Annotated[
    str | None,
    typer.Option(
        help="Chat template, as for `epochal prepare`: plain, chatml, none or a file. Default: the tokenizer's."
    ),
]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="With --serve: port to listen on; 0 picks a free one.")]


def sample(
    run: RunArgument,
    computing: TorchChoice,
    prompt: PromptOption = None,
    chat: ChatOption = False,
    serve: ServeOption = False,
    system: SystemOption = None,
    step: StepOption = None,
    follow: FollowOption = False,
    max_tokens: MaxTokensOption = DEFAULT.max_tokens,
    temperature: TemperatureOption = DEFAULT.temperature,
    top_p: TopPOption = DEFAULT.top_p,
    seed: SeedOption = None,
    stop: StopOption = None,
    tokenizer: TokenizerOption = None,
    end_token: EndTokenOption = None,
    template: TemplateOption = None,
    port: PortOption = 8200,
    credentials_for: CredentialsForOption = None,
    reconnect_s: ReconnectOption = DEFAULT_RECONNECT_S,
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a run's newest checkpoint continue text (--prompt), answer a chat (--chat), or serve both (--serve)."""
    if [prompt is not None, chat, serve].count(True) != 1:
        raise InvalidInput("give one of --prompt, --chat and --serve")
    if step is not None and follow:
        raise InvalidInput("--follow takes newer checkpoints; leave --step out")
    start_logging(LogFormat.TEXT, verbose=False)
    torch = computing.options()
    check_machine(torch)
    permissions = Permissions.of_volunteer(credential_hosts=credentials_for)
    address = RunAddress(run, admin_token, tls_ca, permissions.reach)
    text = TextOptions(tokenizer, end_token, template)
    options = SamplerOptions(permissions if address.is_served else OWNERS, text, torch)
    policy = following_policy(reconnect_s, follows=follow or serve)
    if serve:
        run_to_end(_serve(address, options, step, policy, port))
        return
    asked = Prompt("", ChoiceOptions(max_tokens, temperature, top_p, seed), tuple(stop or ()))
    with _sampling(address, options) as sampler:
        sampler.take(step, policy, waits=follow)
        if prompt is not None:
            given = sys.stdin.read() if prompt == STANDARD_INPUT else prompt
            _answer(sampler, replace(asked, text=given), as_json)
        else:
            before = [] if system is None else [{"role": "system", "content": system}]
            _chat(sampler, asked, before, policy if follow else None, as_json)


@contextlib.contextmanager
def _sampling(address: RunAddress, options: SamplerOptions) -> Iterator[RunSampler]:
    loop = BackgroundLoop("epochal-sample")
    sampler = RunSampler(loop, address, options, _note)
    try:
        yield sampler
    finally:
        sampler.close()
        loop.close()


def _chat(
    sampler: RunSampler, asked: Prompt, messages: list[dict[str, Any]], policy: RetryPolicy | None, as_json: bool
) -> None:
    """Answer the messages on the standard input until it ends. A message that cannot be answered is left out."""
    for line in _lines():
        if policy is not None:
            _take_newer(sampler, policy)
        question = [*messages, {"role": "user", "content": line}]
        try:
            found = _answer(sampler, replace(asked, text=tuple(question)), as_json)
        except InvalidInput as error:
            if not sys.stdin.isatty():
                raise
            _note(f"not answered: {error.message}")
            continue
        messages = [*question, {"role": "assistant", "content": found.text}]


def _take_newer(sampler: RunSampler, policy: RetryPolicy) -> None:
    try:
        sampler.take(None, policy)
    except CoordinatorUnreachable as error:
        _note(f"no newer checkpoint is taken: {error.message}")


def _lines() -> Iterator[str]:
    while True:
        if sys.stdin.isatty():
            typer.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.rstrip("\n")


def _answer(sampler: RunSampler, prompt: Prompt, as_json: bool) -> Sample:
    found = sampler.answer(prompt, (lambda _: None) if as_json else _show)
    typer.echo(json.dumps(asdict(found), ensure_ascii=False) if as_json else "")
    if found.cut_tokens:
        kept = f"the model read the last {found.prompt_tokens} tokens of the prompt"
        _note(f"{kept}, and not the {found.cut_tokens} before them: its context is full")
    return found


def _show(piece: str) -> None:
    """Print a part of an answer. A model writes anything: what a terminal would obey is escaped."""
    sys.stdout.write("".join(one if one in "\n\t" else visible(one) for one in piece))
    sys.stdout.flush()


def _note(text: str) -> None:
    typer.echo(text, err=True)


async def _serve(
    address: RunAddress, options: SamplerOptions, step: int | None, policy: RetryPolicy, port: int
) -> None:
    """Serve on loopback, for this machine alone."""
    from epochal.tools.sample.endpoint import create_app

    async with address.open(policy) as run, Sampler(run, options, _note) as sampler, asyncio.TaskGroup() as tasks:
        view = await run.now()
        if step is not None or view.checkpoints:
            await sampler.take(step)
        run_id = view.state.run_id
        app = create_app(sampler, run_id, SystemClock(), allowed_hosts(LOOPBACK, ()))
        async with serving_app(Endpoint(LOOPBACK, port), app) as url:
            with interruption() as stop:
                following = None if step is not None else tasks.create_task(_follow(sampler, policy))
                await serve_until(stop, f"{run_id} {LISTENING}{url}/v1")
            if following is not None:
                following.cancel()


async def _follow(sampler: Sampler, policy: RetryPolicy) -> None:
    """Take each new checkpoint. If the coordinator is lost, the last one goes on answering."""
    try:
        await sampler.follow(policy, ends=False)
    except EpochalError as error:
        if sampler.step is None:
            raise
        _note(f"no newer checkpoint is taken: {error.message}; replica {sampler.step} answers")
