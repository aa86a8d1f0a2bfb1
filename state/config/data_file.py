"""`data.toml`, which describes the data of a TCP data server, and the check that it fits a `state.toml`."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from epochal.state.config.data_location import SeedBytes, Server
from epochal.state.config.mistakes import parse_file, show
from epochal.state.config.schema import PathText, Positive, Section, TokenSize
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidConfig, Mistake


def _token_size_from_number(value: Any) -> Any:
    sizes = {2: TokenSize.TWO_BYTES, 4: TokenSize.FOUR_BYTES}
    return sizes.get(value, value) if type(value) is int else value


class DataConfig(Section):
    """A TCP data server's `data.toml`.

    Attributes:
        dir: the folder of the token files; a relative one is relative to the file's own folder.
        token_size: bytes of one token; a file may spell the number 2 or 4.
        seq_len: tokens of one sample.
        shuffle_seed: 32 bytes that key the order of the data; None for the files' own order.
    """

    dir: PathText
    token_size: Annotated[
        TokenSize,
        Field(strict=False, description='"TwoBytes" or "FourBytes" (or the number 2 or 4)'),
        BeforeValidator(_token_size_from_number),
    ]
    seq_len: Positive
    shuffle_seed: Annotated[
        SeedBytes | None, Field(description="a list of 32 integers from 0 to 255, or no such line")
    ] = None


def parse_data_config(text: str, source: str) -> DataConfig:
    """Parse and validate a `data.toml`. Raises `InvalidConfig` with every mistake."""
    return parse_file(DataConfig, (), text, source)


def check_together(state: StateFile, state_source: str, data: DataConfig, data_source: str) -> None:
    """Raise `InvalidConfig` unless the run takes its data from a data server, with samples of the same length."""
    mistakes = _length_mistakes(state, state_source, data)
    if not isinstance(state.model.LLM.data_location, Server):
        found = show(state.to_plain()["model"]["LLM"]["data_location"])
        allowed = f'a data file only where model.LLM.data_location in {state_source} is {{ Server = "host:port" }}'
        mistakes.insert(0, Mistake("", "given for a run without a data server", f"{allowed}; it is {found}"))
    if mistakes:
        raise InvalidConfig(data_source, tuple(mistakes))


def check_sequence_length(state: StateFile, state_source: str, data: DataConfig, data_source: str) -> None:
    """Raise `InvalidConfig` unless the data's samples have the length of the run's."""
    mistakes = _length_mistakes(state, state_source, data)
    if mistakes:
        raise InvalidConfig(data_source, tuple(mistakes))


def _length_mistakes(state: StateFile, state_source: str, data: DataConfig) -> list[Mistake]:
    length = state.model.LLM.max_seq_len
    if data.seq_len == length:
        return []
    return [Mistake("seq_len", show(data.seq_len), f"{length}, as model.LLM.max_seq_len in {state_source}")]
