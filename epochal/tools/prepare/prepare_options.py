"""The options of a preparation, checked when they are made."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeAlias, get_args

import typer

from epochal.batching.chat.conversations import Learn
from epochal.state.errors import InvalidInput

Cut: TypeAlias = Literal["file", "lines", "blank-lines"]
"""The extent of a document in a text file: all of it, each line, or the text between blank lines."""
Oversized: TypeAlias = Literal["error", "truncate", "split", "drop"]

MAX_SHARD_TOKENS = 4_000_000_000
MAX_SEQ_LEN = 2**20
MAX_WORKERS = 1024
MAX_VALIDATION = Fraction(1, 2)
NOT_CONTENT = ("workers", "data_address")
"""Options on which no byte of shards and manifests depends: they may differ when a preparation is resumed."""
DATA_ADDRESS = "127.0.0.1:39405"
EXTRA = "pip install 'epochal[prepare]'"
"""Installs the packages that some sources and tokenizers need, for messages."""


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """The options of `prepare`. The same sources and options give the same bytes, whatever `workers` is.

    Attributes:
        end_token: token that ends each document, by its text or as an ID in digits; None: as the tokenizer says.
        documents: what a document is in a text file: the whole `file`, each of its `lines`, or what is between
            `blank-lines`.
        text_field: the field of a JSON record, or the column of a parquet file, that holds the document's text.
        text_suffixes: further suffixes of text files, such as `.py`.
        seq_len: number of tokens of a sample of the run.
        shard_tokens: maximum number of tokens of a shard; a shard holds whole samples.
        validation: share of the documents that is held out, such as `"0.5%"` or `"0.005"`; at most half.
        dedup: whether to drop documents whose text is that of an earlier one.
        skip_bad: whether to skip bad documents and files, such as those that are not UTF-8, and name them in the
            manifest, instead of ending with an error.
        chat: whether the sources are JSON lines of conversations, which become rows of `seq_len` tokens with labels.
        template: of conversations: `plain`, `chatml`, `none`, or a file with a Jinja template; None: the tokenizer's.
        learn: what is learnt of a conversation: every message of the `assistant`, or its `last` one.
        oversized: what to do with a conversation that is longer than a row: `error`, `truncate`, `split` or `drop`.
        workers: number of processes that encode; None: one for each core.
        data_address: `host:port` under which the run's clients reach its data server, for the `state.toml`; not of
            conversations, whose rows no data server serves.

    Raises:
        InvalidInput: an option is out of its bounds; the user's fault.
    """

    end_token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN|ID", help="Token that ends each document. Default: as the tokenizer says."),
    ] = None
    documents: Annotated[Cut, typer.Option(help="What a document is in a text file.")] = "file"
    text_field: Annotated[
        str, typer.Option(help="Field of a JSON record, or column of a parquet file, that holds the text.")
    ] = "text"
    text_suffixes: tuple[str, ...] = ()
    seq_len: Annotated[int, typer.Option(help="Number of tokens of a sample of the run.")] = 2048
    shard_tokens: Annotated[int, typer.Option(help="Maximum number of tokens of a shard.")] = 100_000_000
    validation: Annotated[
        str, typer.Option(metavar="SHARE", help="Hold out this share of the documents, such as 0.5%.")
    ] = "0"
    dedup: Annotated[bool, typer.Option("--dedup", help="Drop documents that repeat an earlier one exactly.")] = False
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad",
            help="Skip documents and archives that cannot be read, and name them in the manifest, instead of ending.",
        ),
    ] = False
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="The sources are JSON lines of conversations (`messages`, or `prompt` and `completion`), made into "
            "rows of --seq-len tokens with labels for what is learnt.",
        ),
    ] = False
    template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Chat template: plain, chatml, none, or a Jinja file. Default: the tokenizer's own; plain for bytes.",
        ),
    ] = None
    learn: Annotated[Learn, typer.Option(help="What is learnt: all of the assistant's messages, or the last one.")] = (
        "assistant"
    )
    oversized: Annotated[Oversized, typer.Option(help="What to do with a conversation that is longer than a row.")] = (
        "error"
    )
    workers: Annotated[
        int | None, typer.Option(help="Number of processes that encode. Default: one for each core.")
    ] = None
    data_address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the run's clients will reach its data server; tls://HOST:PORT if it has a certificate.",
        ),
    ] = DATA_ADDRESS

    def __post_init__(self) -> None:
        for name, least, most in (
            ("seq_len", 2, MAX_SEQ_LEN),
            ("shard_tokens", self.seq_len, MAX_SHARD_TOKENS),
            ("workers", 1, MAX_WORKERS),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InvalidInput(f"{spelled(name)} {value}; allowed: {least} to {most}")
        for name, allowed in (("documents", Cut), ("learn", Learn), ("oversized", Oversized)):
            if getattr(self, name) not in get_args(allowed):
                raise InvalidInput(f"{spelled(name)} {getattr(self, name)!r}; allowed: {', '.join(get_args(allowed))}")
        for name, default in (("template", None), ("learn", "assistant"), ("oversized", "error")):
            if not self.chat and getattr(self, name) != default:
                raise InvalidInput(f"{spelled(name)} {getattr(self, name)}; allowed: with --chat")
        if self.chat and self.data_address != DATA_ADDRESS:
            raise InvalidInput(
                f"--data-address {self.data_address!r}; allowed: without --chat, whose rows each client reads itself "
                "from a folder"
            )
        for suffix in self.text_suffixes:
            if not suffix.startswith(".") or "/" in suffix or len(suffix) < 2:
                raise InvalidInput(f"--text-suffix {suffix!r}; allowed: a dot and a name, such as .py")
        _ = self.held_out

    @property
    def held_out(self) -> Fraction:
        """The share of the documents that is held out."""
        text = self.validation.strip()
        try:
            share = Fraction(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except (ValueError, ZeroDivisionError):
            share = Fraction(-1)
        if not 0 <= share <= MAX_VALIDATION:
            raise InvalidInput(f"--validation {self.validation!r}; allowed: 0 to 50%, such as 0.5% or 0.005")
        return share

    @property
    def tokens_of_a_shard(self) -> int:
        """The number of tokens of a full shard: whole samples."""
        return self.shard_tokens // self.seq_len * self.seq_len

    def content(self) -> dict[str, Any]:
        """Return the options on which the result's bytes depend, as plain JSON values."""
        found = {name: value for name, value in asdict(self).items() if name not in NOT_CONTENT}
        return found | {"validation": str(self.held_out), "text_suffixes": sorted(self.text_suffixes)}


def spelled(name: str) -> str:
    """Return an option's name as the command line spells it."""
    return "--" + name.replace("_", "-")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in words how the options of a preparation differ from those of an earlier one."""
    return [
        f"{spelled(name)} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
