"""`data.toml`, which describes the data of a TCP data server, and the check that it fits a `state.toml`."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from epochal.state.config.data_location import SeedBytes, Server
from epochal.state.config.mistakes import Rule, parse_file, show
from epochal.state.config.schema import PathText, Positive, Section, TokenSize
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidConfig, Mistake


def _token_size_from_number(value: Any) -> Any:
    sizes = {2: TokenSize.TWO_BYTES, 4: TokenSize.FOUR_BYTES}
    return sizes.get(value, value) if type(value) is int else value


class DataConfig(Section):
    """A TCP data server's `data.toml`.

    Attributes:
        dir: the folder of the files; a relative one is relative to the file's own folder.
        token_size: bytes of one token; a file may spell the number 2 or 4. None where samples have any length, as in a
            run that packs them: records, or rows of parquet or Arrow files.
        seq_len: tokens of one sample; None likewise.
        shuffle_seed: 32 bytes that key the order of the data; None for the files' own order.
    """

    dir: PathText
    token_size: Annotated[
        TokenSize | None,
        Field(strict=False, description='"TwoBytes" or "FourBytes" (or the number 2 or 4)'),
        BeforeValidator(_token_size_from_number),
    ] = None
    seq_len: Positive | None = None
    shuffle_seed: Annotated[
        SeedBytes | None, Field(description="a list of 32 integers from 0 to 255, or no such line")
    ] = None

    @model_validator(mode="after")
    def _keep_rules(self) -> Self:
        if (self.token_size is None) != (self.seq_len is None):
            raise ValueError("token_size and seq_len go together")
        return self


RULES = (
    Rule(
        ("token_size", "seq_len"),
        lambda size, length: (size is None) == (length is None),
        "with a line seq_len, and not without one: both where the files hold tokens, neither where they hold samples "
        "of any length, for a run that packs them",
    ),
)


def parse_data_config(text: str, source: str) -> DataConfig:
    """Parse and validate a `data.toml`. Raises `InvalidConfig` with every mistake."""
    return parse_file(DataConfig, RULES, text, source)


def check_together(state: StateFile, state_source: str, data: DataConfig, data_source: str) -> None:
    """Raise `InvalidConfig` unless the run takes its data from a data server, with samples of its own length."""
    mistakes = _length_mistakes(state, state_source, data)
    if not isinstance(state.model.LLM.data_location, Server):
        found = show(state.to_plain()["model"]["LLM"]["data_location"])
        allowed = f'a data file only where model.LLM.data_location in {state_source} is {{ Server = "host:port" }}'
        mistakes.insert(0, Mistake("", "given for a run without a data server", f"{allowed}; it is {found}"))
    if mistakes:
        raise InvalidConfig(data_source, tuple(mistakes))


def check_sequence_length(state: StateFile, state_source: str, data: DataConfig, data_source: str) -> None:
    """Raise `InvalidConfig` unless the data's samples have the run's length, or any where the run packs them."""
    mistakes = _length_mistakes(state, state_source, data)
    if mistakes:
        raise InvalidConfig(data_source, tuple(mistakes))


def _length_mistakes(state: StateFile, state_source: str, data: DataConfig) -> list[Mistake]:
    llm = state.model.LLM
    if llm.data_type.reads_records:
        kind = f'model.LLM.data_type in {state_source} is "{llm.data_type.value}"'
        line = f"neither it nor token_size: {kind}, whose samples have any length"
        return [] if data.seq_len is None else [Mistake("seq_len", show(data.seq_len), line)]
    if data.seq_len == llm.max_seq_len:
        return []
    found = None if data.seq_len is None else show(data.seq_len)
    return [Mistake("seq_len", found, f"{llm.max_seq_len}, as model.LLM.max_seq_len in {state_source}")]
