"""`epochal init`: write the files of a new run."""

import secrets
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar, get_args

import typer

from epochal.cli.output.printing import say
from epochal.commands.operate.access import checked_keys
from epochal.runtime.files.durable_files import create_file
from epochal.state.errors import InvalidInput
from epochal.state.round_model import UNLIMITED, ClientGroup, Links
from epochal.state.shown.join_guide import data_of
from epochal.state.wire import sha256_hex
from epochal.tools.init.choices import (
    BYTES_VOCABULARY,
    LLAMAS,
    NGRAM,
    ChosenData,
    chosen_data,
    chosen_model,
    chosen_run_id,
    tokens_in_all,
)
from epochal.tools.init.files import NewRun, Written, files_of
from epochal.tools.init.next_commands import next_commands
from epochal.tools.plan.plan_text import plan_text
from epochal.tools.plan.planner import check_groups
from epochal.tools.plan.plans import PlanOptions
from epochal.tools.plan.scenario import parse_clients, parse_link
from epochal.tools.prepare.run_files import run_id_of

MODELS = ", ".join((NGRAM, *LLAMAS))
DATA_ADDRESS = "127.0.0.1:39405"
DEFAULT_CLIENTS = "2 x 100mbit/20mbit 40ms 20k tokens/s"
FILES = ("state.toml", "data.toml")
INVITATION_BYTES = 16
LEAST_NUMBER = 2
"""Of different tokens, and of tokens of a sample."""
NO_TOKENS = "(default: a hundred rounds)"
MADE_UP_DATA = "dummy"
DATA_QUESTION = "Data: a folder of token files, dummy (random bytes), or an address"
ADDRESS_QUESTION = "Where clients reach these data, as HOST:PORT or tls://HOST:PORT"
CLIENTS_QUESTION = (
    "Clients: how many, link of each (down/up), round trip, what it trains, as in\n"
    '"16 x 100mbit/20mbit 40ms 90k tokens/s"'
)
KEY_QUESTION = "Public key of a first member, as `epochal key show FILE` prints it"
MADE_UP = """The data are random bytes: this run shows that machines train together, and its model learns nothing
(the loss of random bytes is 5.55, however long they are trained). For text of your own, make token files of it, and
begin again with them:
  epochal prepare TEXT.txt --tokenizer bytes --out data
  epochal init OTHER_DIR --data data/train"""

Read = TypeVar("Read")
Access: TypeAlias = Literal["open", "keys", "invitations"]
ACCESS: tuple[Access, ...] = get_args(Access)

DirArgument = Annotated[
    Path, typer.Argument(metavar="[DIR]", help="Folder for the two files; it is made if it does not exist.")
]


RunIdOption = Annotated[str | None, typer.Option(help="Name of the run. Default: the folder's name.")]
DataOption = Annotated[
    str | None,
    typer.Option(
        metavar="LOCATION",
        help="Folder of token files on this machine, which a data server serves; dummy (random bytes); or an address "
        "that every client reads itself: https://…, s3://bucket/folder, gs://…",
    ),
]
DataAddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where clients reach the data server; tls://HOST:PORT if it has a certificate. Default: "
        f"{DATA_ADDRESS}, which only this machine can reach.",
    ),
]
TokenSizeOption = Annotated[
    int | None, typer.Option(help="Bytes of a token in the files: 2 or 4. Default: by --vocabulary.")
]
VocabularyOption = Annotated[
    int | None, typer.Option(min=LEAST_NUMBER, help="Number of different tokens of the data: 256 for bytes.")
]
ModelOption = Annotated[
    str | None, typer.Option(metavar="MODEL", help=f"{MODELS}, or the path of a Hugging Face config.json.")
]
SeqLenOption = Annotated[int | None, typer.Option(min=LEAST_NUMBER, help="Tokens of a sample.")]
ClientsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CLIENTS",
        help='Clients that are alike, as `epochal plan` takes them: "16 x 100mbit/20mbit 40ms 90k tokens/s". Repeat '
        "for others.",
    ),
]
CoordinatorOption = Annotated[
    str | None, typer.Option(metavar="LINK", help='The coordinator\'s link, such as "1gbit/1gbit"; else no limit.')
]
TokensOption = Annotated[
    str | None, typer.Option(metavar="NUMBER", help="Tokens to train in all: 10B, or '3 passes' over the data.")
]
CodecOption = Annotated[
    Literal["float32", "int8", "int4"], typer.Option(help="How clients encode what they send (docs/merging.md).")
]
AccessOption = Annotated[Access | None, typer.Option(help="Who may join the run.")]
AllowKeyOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY", help="With --access keys: a client's public key, in hex.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: take the default of what is not given.")]


def init(
    folder: DirArgument = Path(),
    run_id: RunIdOption = None,
    data: DataOption = None,
    data_address: DataAddressOption = None,
    token_size: TokenSizeOption = None,
    vocabulary: VocabularyOption = None,
    model: ModelOption = None,
    seq_len: SeqLenOption = None,
    clients: ClientsOption = None,
    coordinator: CoordinatorOption = None,
    tokens: TokensOption = None,
    codec: CodecOption = "int4",
    access: AccessOption = None,
    allow_key: AllowKeyOption = None,
    yes: YesOption = False,
) -> None:
    """Write state.toml and data.toml of a new run, with timers and sizes that its planner finds sensible.

    Asks on a terminal for what no option says.
    """
    check_new(folder)
    if token_size not in (None, 2, 4):
        raise InvalidInput(f"--token-size {token_size}; allowed: 2 or 4")
    ask = _Asking(is_asking=sys.stdin.isatty() and not yes)
    run_id = ask.text("--run-id", "Name of the run", run_id, run_id_of(folder), chosen_run_id)
    data = ask.text("--data", DATA_QUESTION, data, MADE_UP_DATA, _checked(_data_of))
    if _data_of(data).folder is not None:
        read_address = _checked(lambda text: _data_of(data, address=text))
        data_address = ask.text("--data-address", ADDRESS_QUESTION, data_address, DATA_ADDRESS, read_address)
    vocabulary = ask.number("--vocabulary", "Number of different tokens (256 for bytes)", vocabulary, BYTES_VOCABULARY)
    token_size = token_size or (2 if vocabulary <= 1 << 16 else 4)
    found = _data_of(data, token_size, data_address or DATA_ADDRESS)
    is_bytes = vocabulary <= BYTES_VOCABULARY
    read_model = _checked(lambda text: chosen_model(text, vocabulary, LEAST_NUMBER))
    usual = NGRAM if is_bytes else "llama-30m"
    model = ask.text("--model", f"Model: {MODELS}, or a config.json", model, usual, read_model)
    seq_len = ask.number("--seq-len", "Tokens of a sample", seq_len, 512 if model == NGRAM else 1024)
    groups = _groups(clients) if clients else ask.text("--clients", CLIENTS_QUESTION, None, DEFAULT_CLIENTS, _groups_of)
    passes = "1 pass" if found.tokens else ""
    total_tokens = ask.text(
        *("--tokens", "Tokens to train in all (10B, or 3 passes)", tokens, passes),
        lambda text: tokens_in_all(text, found) if text else None,
    )
    opened = ask.text("--access", f"Who may join ({', '.join(ACCESS)})", access, ACCESS[0], _access_of)
    if opened == "keys" and not allow_key and ask.is_asking:
        allow_key = [ask.text("--allow-key", KEY_QUESTION, None, "", _checked(lambda text: checked_keys([text])))]
    entries, invitation = _entries(opened, allow_key or [])
    chosen = chosen_model(model, vocabulary, seq_len)
    run = NewRun(run_id, chosen, found, seq_len, codec, opened, entries)
    options = PlanOptions(Links(UNLIMITED if coordinator is None else parse_link(coordinator, "--coordinator")))
    written = files_of(run, groups, options, total_tokens, token_size)
    _write(folder, written)
    say(plan_text(written.proposal.plan))
    if ask.taken:
        say("\ntaken by default, as nobody was asked:")
        say("\n".join(f"  {option} {shlex.quote(value) if value else NO_TOKENS}" for option, value in ask.taken))
    if written.unpinned:
        say(f"\nstate.toml does not say which data are the run's, as they could not be opened: {written.unpinned}")
    if data == MADE_UP_DATA:
        say(f"\n{MADE_UP}")
    _say_next(folder, written, invitation)


class _Asking:
    """Asks for what no option gives; takes defaults without a terminal."""

    def __init__(self, *, is_asking: bool) -> None:
        self.taken: list[tuple[str, str]] = []
        """Options and the defaults that were taken for them without a question."""
        self.is_asking = is_asking
        """Whether somebody is asked."""

    def text(self, option: str, question: str, given: str | None, default: str, read: Callable[[str], Read]) -> Read:
        """Return what `read` makes of what was given, or of an answer: it is asked for until `read` takes one.

        Raises:
            InvalidInput: `read` does not take what was given, or the default.
        """
        while given is None and self.is_asking:
            try:
                return read(typer.prompt(question, default=default, show_default=bool(default)))
            except InvalidInput as error:
                typer.echo(error.message, err=True)
        if given is None:
            self.taken.append((option, default))
        return read(default if given is None else given)

    def number(self, option: str, question: str, given: int | None, default: int) -> int:
        """Return what was given, or the number that answers a question, of at least `LEAST_NUMBER`."""

        def read(text: str) -> int:
            if not text.isdecimal() or int(text) < LEAST_NUMBER:
                raise InvalidInput(f"{option} {text!r}; allowed: a number of at least {LEAST_NUMBER}")
            return int(text)

        return given if given is not None else self.text(option, question, None, str(default), read)


def _checked(read: Callable[[str], object]) -> Callable[[str], str]:
    """Return a function that returns its text if `read` takes it."""

    def checked(text: str) -> str:
        read(text)
        return text

    return checked


def _data_of(text: str, token_size: int = 2, address: str = DATA_ADDRESS) -> ChosenData:
    return chosen_data(text, token_size, address)


def _groups(texts: list[str]) -> list[ClientGroup]:
    groups = [parse_clients(text, "--clients") for text in texts]
    check_groups(groups)
    return groups


def _groups_of(text: str) -> list[ClientGroup]:
    return _groups([text])


def _access_of(text: str) -> Access:
    found = next((each for each in ACCESS if each == text), None)
    if found is None:
        raise InvalidInput(f"--access {text!r}; allowed: {', '.join(ACCESS)}")
    return found


def check_new(folder: Path) -> None:
    """Raise `InvalidInput` if a file of a run is there already: nothing is overwritten."""
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise InvalidInput(f"{folder / there[0]} exists; allowed: a folder without {' and '.join(FILES)}")


def _entries(access: str, keys: list[str]) -> tuple[tuple[str, ...], str | None]:
    """Return the entries of `[access]` with which a run begins, and the first invitation if it has one."""
    if access == "keys" and not keys:
        raise InvalidInput("--access keys needs --allow-key KEY: the public key that `epochal key show FILE` prints")
    if access != "keys" and keys:
        raise InvalidInput(f"--allow-key goes with --access keys, not with {access}")
    if access == "invitations":
        code = secrets.token_urlsafe(INVITATION_BYTES)
        return (sha256_hex(code.encode()),), code
    return tuple(key.lower() for key in keys), None


def _write(folder: Path, written: Written) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_new(folder)
        for name, text in zip(FILES, (written.state, written.data), strict=True):
            if text is not None:
                create_file(folder / name, text.encode())
    except OSError as error:
        raise InvalidInput(f"{folder}: {error.strerror or error}") from error


def _say_next(folder: Path, written: Written, invitation: str | None) -> None:
    state, data = folder / "state.toml", None if written.data is None else folder / "data.toml"
    check, coordinator, client = next_commands(written.proposal.state, state, data, invitation)
    say(f"\nwrote {state}{'' if data is None else f' and {data}'}. Next:")
    say(f"  {check}\n  {coordinator}")
    say(f"  {client}    # on each machine that trains, in a terminal of its own")
    if invitation is not None:
        say("the invitation is for one client; `epochal invite` makes others")
    if data is not None and data_of(written.proposal.state.model.LLM.data_location)[0].loopback:
        say("only this machine can reach the data: for others, give --data-address tls://NAME:PORT, with its name")
