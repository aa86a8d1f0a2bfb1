"""`epochal init`: write the files of a new run."""

import secrets
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from epochal.cli.options.shared import VERIFIER_TOKEN_VARIABLE
from epochal.cli.output.printing import say
from epochal.runtime.files.durable_files import create_file
from epochal.state.config.state_file import MAX_LOCAL_STEPS
from epochal.state.config.support import ensure_supported
from epochal.state.errors import InvalidInput
from epochal.state.round_model import UNLIMITED, Links
from epochal.state.shown.join_guide import data_of
from epochal.state.wire import sha256_hex
from epochal.tools.init.choices import (
    BYTES_VOCABULARY,
    LLAMAS,
    NGRAM,
    REPEATABLE,
    check_vocabulary,
    chosen_codec,
    chosen_data,
    chosen_model,
    chosen_run_id,
    optimizers_of,
    tokens_in_all,
)
from epochal.tools.init.files import Written, files_of
from epochal.tools.init.next_commands import next_commands
from epochal.tools.init.run_text import NewRun
from epochal.tools.plan.plan_text import plan_text
from epochal.tools.plan.plans import PlanOptions
from epochal.tools.plan.scenario import parse_clients, parse_link
from epochal.tools.prepare.publishing import TRAIN, Preparation, preparation_of
from epochal.tools.prepare.run_files import run_id_of
from epochal.tools.quality import (
    MEASURED,
    MOST_OF_CODEC,
    OptimizerName,
    codec_choices,
    optimizer_of,
    settings_of,
    smaller_choices,
)
from epochal.trainers.architectures import ARCHITECTURES

MODELS = ", ".join((NGRAM, *LLAMAS))
USUAL_CODEC = "int4"
DATA_ADDRESS = "127.0.0.1:39405"
DEFAULT_CLIENTS = "2 x 100mbit/20mbit 40ms 20k tokens/s"
FILES = ("state.toml", "data.toml")
INVITATION_BYTES = 16
LEAST_NUMBER = 2
"""Of different tokens, and of tokens of a sample."""
MADE_UP_DATA = "dummy"
MADE_UP = """The data are random bytes: this run shows that machines train together, and its model learns nothing
(the loss of random bytes is 5.55, however long they are trained). For text of your own, make token files of it, and
begin again with them:
  epochal prepare TEXT.txt --tokenizer bytes --out data
  epochal init OTHER_DIR --data data"""

Access: TypeAlias = Literal["open", "keys", "invitations"]

DirArgument = Annotated[
    Path, typer.Argument(metavar="[DIR]", help="Folder for the two files; it is made if it does not exist.")
]


RunIdOption = Annotated[str | None, typer.Option(help="Name of the run. Default: the folder's name.")]
DataOption = Annotated[
    str,
    typer.Option(
        metavar="LOCATION",
        help="Folder of `epochal prepare`, or of token files, on this machine, which a data server serves; dummy "
        "(random bytes); or an address that every client reads itself: https://…, s3://bucket/folder, gs://…",
    ),
]
DataAddressOption = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT", help="Where clients reach the data server; tls://HOST:PORT if it has a certificate."
    ),
]
TokenSizeOption = Annotated[
    int | None, typer.Option(help="Bytes of a token in the files: 2 or 4. Default: by --vocabulary.")
]
VocabularyOption = Annotated[
    int | None,
    typer.Option(
        min=LEAST_NUMBER,
        help="Number of different tokens of the data. Default: as `epochal prepare` made them, else "
        f"{BYTES_VOCABULARY}, for bytes.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help=f"{MODELS}, or the path of a Hugging Face config.json. Default: {NGRAM} for bytes, else llama-30m.",
    ),
]
SeqLenOption = Annotated[
    int | None,
    typer.Option(
        min=LEAST_NUMBER,
        help=f"Tokens of a sample. Default: as `epochal prepare` made them, else 512 for {NGRAM}, or 1024.",
    ),
]
ClientsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CLIENTS",
        help='Clients that are alike, as `epochal plan` takes them: "16 x 100mbit/20mbit 40ms 90k tokens/s". Repeat '
        f'for others. Default: "{DEFAULT_CLIENTS}".',
    ),
]
CoordinatorOption = Annotated[
    str | None, typer.Option(metavar="LINK", help='The coordinator\'s link, such as "1gbit/1gbit"; else no limit.')
]
TokensOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Tokens to train in all: 10B, or '3 passes' over the data. Default: 1 pass, or a hundred rounds.",
    ),
]
CodecOption = Annotated[
    str | None,
    typer.Option(
        help=f"How clients encode what they send (docs/merging.md): {', '.join(codec_choices())}, which lose at most "
        f"{100 * MOST_OF_CODEC - 100:.0f} % with a small model. Default: {USUAL_CODEC}, or a smaller one where uploads "
        "are long (docs/planning.md)."
    ),
]
LocalStepsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_LOCAL_STEPS,
        help="Optimizer steps of a client in a round. Default: at most 100, which lose at most 2 % with a small "
        "model (docs/planning.md).",
    ),
]
OptimizerOption = Annotated[
    OptimizerName | None,
    typer.Option(
        case_sensitive=False,
        help="The clients' optimizer. Muon moves hidden matrices, AdamW the other tensors (docs/torch.md#muon). "
        "Default: AdamW, or Muon for a torch model that is verified or whose clients would train less than 80 % of "
        "the time.",
    ),
]
AccessOption = Annotated[Access, typer.Option(help="Who may join the run.")]
AllowKeyOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY", help="With --access keys: a client's public key, in hex.")
]
VerifyOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=100,
        metavar="PERCENT",
        help="Have verifiers compute so many of the results again, and choose what goes with that "
        "(docs/verification.md). Default: nobody does.",
    ),
]


def init(
    folder: DirArgument = Path(),
    run_id: RunIdOption = None,
    data: DataOption = MADE_UP_DATA,
    data_address: DataAddressOption = DATA_ADDRESS,
    token_size: TokenSizeOption = None,
    vocabulary: VocabularyOption = None,
    model: ModelOption = None,
    seq_len: SeqLenOption = None,
    clients: ClientsOption = None,
    coordinator: CoordinatorOption = None,
    tokens: TokensOption = None,
    codec: CodecOption = None,
    local_steps: LocalStepsOption = None,
    optimizer: OptimizerOption = None,
    access: AccessOption = "open",
    allow_key: AllowKeyOption = None,
    verify: VerifyOption = None,
) -> None:
    """Write state.toml and data.toml of a new run, with timers and sizes that its planner finds sensible."""
    check_new(folder)
    if token_size not in (None, 2, 4):
        raise InvalidInput(f"--token-size {token_size}; allowed: 2 or 4")
    run_id = chosen_run_id(run_id_of(folder) if run_id is None else run_id)
    made = _preparation(data)
    if made is not None:
        data = str(made.folder / TRAIN)
        vocabulary = _as_prepared("--vocabulary", vocabulary, made.tokenizer.vocabulary)
        token_size = _as_prepared("--token-size", token_size, made.tokenizer.token_size)
        seq_len = seq_len or made.seq_len
    vocabulary = vocabulary or BYTES_VOCABULARY
    token_size = token_size or (2 if vocabulary <= 1 << 16 else 4)
    found = chosen_data(data, token_size, data_address)
    if found.folder is not None:
        check_vocabulary(found.folder, token_size, vocabulary)
    model = model or (NGRAM if vocabulary <= BYTES_VOCABULARY else "llama-30m")
    seq_len = seq_len or (512 if model == NGRAM else 1024)
    chosen = chosen_model(model, vocabulary, seq_len)
    groups = [parse_clients(text, "--clients") for text in clients or (DEFAULT_CLIENTS,)]
    tokens = tokens or ("1 pass" if found.tokens else None)
    total_tokens = None if tokens is None else tokens_in_all(tokens, found)
    entries, invitation = _entries(access, allow_key or [])
    tokenizer = None if made is None else made.tokenizer.sha256
    rows = MEASURED if verify is None else REPEATABLE
    codecs = [chosen_codec(codec or USUAL_CODEC, rows)]
    codecs += [] if codec is not None else map(settings_of, smaller_choices(USUAL_CODEC, rows))
    optimizers = optimizers_of(chosen, is_verified=verify is not None) if optimizer is None else (optimizer,)
    run, *others = (
        NewRun(run_id, chosen, found, seq_len, merge, access, entries, tokenizer, verify, one)
        for one in optimizers
        for merge in codecs
    )
    options = PlanOptions(Links(UNLIMITED if coordinator is None else parse_link(coordinator, "--coordinator")))
    written = files_of(
        *(run, groups, options, token_size), total_tokens=total_tokens, local_steps=local_steps, others=others
    )
    if verify is not None:
        ensure_supported(written.proposal.state, FILES[0], ARCHITECTURES)
    _say_chosen(written, codec or USUAL_CODEC, optimizer)
    _write(folder, written)
    say(plan_text(written.proposal.plan))
    if written.unpinned:
        say(f"\nstate.toml does not say which data are the run's, as they could not be opened: {written.unpinned}")
    if data == MADE_UP_DATA:
        say(f"\n{MADE_UP}")
    _say_next(folder, written, invitation)


def _preparation(data: str) -> Preparation | None:
    """Return what `epochal prepare` made in a folder, or in that of the training split; None if it made none there."""
    made = preparation_of(Path(data))
    if made is not None and made.is_chat:
        raise InvalidInput(
            f"--data {data} holds conversations; {made.folder / FILES[0]} is a run of them, to be edited"
        )
    return made


def _as_prepared(option: str, given: int | None, made: int) -> int:
    if given not in (None, made):
        raise InvalidInput(f"{option} {given}: `epochal prepare` made these data with {made}; allowed: that, or none")
    return made


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


def _say_chosen(written: Written, codec: str, optimizer: OptimizerName | None) -> None:
    """Say which codec a run has instead of the usual one, or that which was asked for, and which optimizer."""
    state = written.proposal.state
    if written.proposal.notice:
        say(f"{written.proposal.notice}\n")
    if state.merge.codec != codec:
        say(f"results are {state.merge.codec}, so that clients train more of the time (not with --codec {codec})\n")
    if optimizer_of(state) not in (optimizer, "AdamW"):
        why = "so that rounds may be longer" if state.verify is None else "which loses less without its moments"
        say(f"the optimizer is Muon, {why} (not with --optimizer AdamW)\n")


def _say_next(folder: Path, written: Written, invitation: str | None) -> None:
    state, data = folder / "state.toml", None if written.data is None else folder / "data.toml"
    check, coordinator, client, *verifying = next_commands(written.proposal.state, state, data, invitation)
    say(f"\nwrote {state}{'' if data is None else f' and {data}'}. Next:")
    say(f"  {check}\n  {coordinator}")
    say(f"  {client}    # on each machine that trains, in a terminal of its own")
    if verifying:
        token, verifier = verifying
        say(f"  {token}    # where the coordinator runs; it prints the token for the next command")
        say(f"  {VERIFIER_TOKEN_VARIABLE}=… {verifier}    # on a machine of your own")
    if invitation is not None:
        say("the invitation is for one client; `epochal invite` makes others")
    if data is not None and data_of(written.proposal.state.model.LLM.data_location)[0].loopback:
        say("only this machine can reach the data: for others, give --data-address tls://NAME:PORT, with its name")
