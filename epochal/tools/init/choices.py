"""The answers from which the files of a new run are made, and what each may be."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from epochal.data_providers.file_names import NPY_SUFFIX, RAW_SUFFIXES
from epochal.data_providers.locations import parse_location
from epochal.state.config.data_location import DummyData, Server, SingleUrl
from epochal.state.config.file_urls import named_path
from epochal.state.config.state_file import MAX_RUN_ID_BYTES
from epochal.state.config.support import RUN_ID_LINE, SERVED_RUN_ID
from epochal.state.errors import InvalidInput
from epochal.tools.plan.scenario import parse_count
from epochal.tools.quality import (
    MEASURED,
    MOST_OF_CODEC,
    Measured,
    OptimizerName,
    codec_choices,
    settings_of,
    shown_loss,
)

NGRAM = "ngram"
BYTES_VOCABULARY = 256
"""The embedded model knows bytes."""
LLAMAS: Mapping[str, Mapping[str, int]] = {
    "llama-6m": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 4},
    "llama-30m": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 10, "num_attention_heads": 8},
    "llama-90m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 14, "num_attention_heads": 12},
    "llama-300m": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 28, "num_attention_heads": 16},
    "llama-1b": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32},
}
"""Llamas by their number of parameters beside those of the vocabulary; the widths of the larger ones are as published
for models of their size."""
TOKEN_SUFFIXES = (*RAW_SUFFIXES, NPY_SUFFIX)
INSPECTED_BYTES = 8 * 1024 * 1024
"""Bytes of each file of which the tokens are compared with the vocabulary."""
MAX_CONFIG_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model.

    Attributes:
        architecture: its name in the state file.
        hf: its Hugging Face config; None for the embedded model.
    """

    architecture: str
    hf: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ChosenData:
    """The place of a run's data.

    Attributes:
        location: as TOML has it, of the state file.
        folder: of token files that a data server serves; None without one.
        tokens: number of tokens of one pass; None where it is not known.
    """

    location: str
    folder: Path | None
    tokens: int | None


def chosen_run_id(text: str) -> str:
    """Return the name of a run, as it is.

    Raises:
        InvalidInput: a run cannot be called so.
    """
    if not SERVED_RUN_ID.fullmatch(text) or len(text) > MAX_RUN_ID_BYTES:
        raise InvalidInput(f"--run-id {text!r}; allowed: at most {MAX_RUN_ID_BYTES} of {RUN_ID_LINE}")
    return text


def chosen_model(text: str, vocabulary: int, seq_len: int) -> ChosenModel:
    """Return the model of a name, or of the path of a Hugging Face config.

    Args:
        text: `ngram`, one of `LLAMAS`, or the path of a `config.json`.
        vocabulary: number of tokens.
        seq_len: of a sample.

    Raises:
        InvalidInput: it is neither; the file is no config; or the model does not know the vocabulary.
    """
    if text == NGRAM:
        if vocabulary > BYTES_VOCABULARY:
            raise InvalidInput(f"--model ngram knows {BYTES_VOCABULARY} tokens, bytes; the data have {vocabulary}")
        return ChosenModel("EpochalNgram", None)
    if text in LLAMAS:
        return ChosenModel("HfLlama", llama_config(LLAMAS[text], vocabulary, seq_len))
    names = ", ".join((NGRAM, *LLAMAS))
    path = Path(text)
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(MAX_CONFIG_BYTES + 1))
    except FileNotFoundError:
        raise InvalidInput(f"--model {text}: no such model or file; allowed: {names}, or a config.json") from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--model {text} cannot be read as a config.json: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InvalidInput(f"--model {text} is no Hugging Face config: it has no model_type")
    known = config.get("vocab_size")
    if isinstance(known, int) and known < vocabulary:
        raise InvalidInput(f"--model {text} knows {known} tokens (vocab_size); the data have {vocabulary}")
    return ChosenModel("HfLlama" if config["model_type"] == "llama" else "HfAuto", config)


def optimizers_of(model: ChosenModel, *, is_verified: bool) -> tuple[OptimizerName, ...]:
    """Return the optimizers that a new run may have unless one is asked for, the usual one first.

    Where results are computed again, moments begin anew in each round, by which Muon loses less. Its prices were
    measured with a model of transformers.
    """
    if model.hf is None:
        return ("AdamW",)
    return ("Muon",) if is_verified else ("AdamW", "Muon")


REPEATABLE = tuple(row for row in MEASURED if not row.merge.error_feedback)
"""What was measured of runs whose results can be computed again."""


def chosen_codec(name: str, rows: Sequence[Measured] = MEASURED) -> dict[str, Any]:
    """Return the fields of `[merge]` with which a codec is measured to lose little.

    Args:
        name: of the codec.
        rows: what was measured (`epochal/tools/quality.py`).

    Raises:
        InvalidInput: it loses more, or was not measured.
    """
    choices = codec_choices(rows)
    if name in choices:
        return settings_of(choices[name].merge)
    tables = [row.merge for row in MEASURED if row.choice == "codec" and row.merge.codec == name]
    price = min((row.ratio for row in rows if row.choice == "codec" and row.merge.codec == name), default=None)
    why, hint = shown_loss(price), "; state.toml may have any (docs/benchmarks-codecs.md)"
    if price is None and tables and all(merge.error_feedback for merge in tables):
        why, hint = "which needs error feedback: such results cannot be computed again, as with --verify", ""
    raise InvalidInput(
        f"--codec {name[:32]!a}, {why}; allowed: {', '.join(choices)}, which lose at most "
        f"{100 * MOST_OF_CODEC - 100:.0f} % with a small model{hint}"
    )


def llama_config(sizes: Mapping[str, int], vocabulary: int, seq_len: int) -> dict[str, Any]:
    """Return the Hugging Face config of a Llama of these sizes."""
    return {
        "model_type": "llama",
        "vocab_size": vocabulary,
        **sizes,
        "num_key_value_heads": max(1, sizes["num_attention_heads"] // 4),
        "max_position_embeddings": seq_len,
        "tie_word_embeddings": True,
    }


def chosen_data(text: str, token_size: int, address: str) -> ChosenData:
    """Return the data of a folder, an address or a URL.

    Args:
        text: a folder of token files on this machine, which a data server serves; or what `client --data` takes.
        token_size: bytes of a token, for the folder's size.
        address: `host:port` of the data server, for a folder.

    Raises:
        InvalidInput: there is no such folder or location, or the folder holds no token files.
    """
    text = named_path(text, "--data")
    if "://" not in text and text != "dummy":
        return _folder(Path(text), token_size, address)
    location = parse_location(text)
    if isinstance(location, DummyData):
        return ChosenData('"Dummy"                 # random bytes: nothing can be learnt from them', None, None)
    if isinstance(location, SingleUrl):
        size = {2: "TwoBytes", 4: "FourBytes"}[token_size]
        shown = f'location = {{ SingleUrl = {_quoted(text)} }}, token_size_in_bytes = "{size}", shuffle = "DontShuffle"'
        return ChosenData(f"{{ Http = {{ {shown} }} }}", None, None)
    dumped = location.model_dump(mode="json", exclude_none=True) if hasattr(location, "model_dump") else None
    kind = getattr(location, "variant", None)
    if dumped is None or kind is None:
        raise InvalidInput(f"--data {text}: clients find such data by their own --data; give a folder or dummy here")
    inner = _quoted(dumped) if isinstance(dumped, str) else _inline(dumped)
    return ChosenData(f"{{ {kind} = {inner} }}", None, None)


def _folder(folder: Path, token_size: int, address: str) -> ChosenData:
    if not folder.is_dir():
        raise InvalidInput(f"--data {folder}: no such folder; allowed: a folder of token files, dummy, or an address")
    count = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in TOKEN_SUFFIXES)
    if not count:
        advice = "make some with `epochal prepare`, or write tokens as little-endian integers"
        raise InvalidInput(f"--data {folder}: no token files ({', '.join(TOKEN_SUFFIXES)}); {advice}")
    try:
        Server(address)
    except ValueError as error:
        raise InvalidInput(f"--data-address {address}: allowed: host:port") from error
    return ChosenData(f"{{ Server = {_quoted(address)} }}", folder, count // token_size)


def check_vocabulary(folder: Path, token_size: int, vocabulary: int) -> None:
    """Raise `InvalidInput` if one of the first tokens of a folder's files is none of a vocabulary."""
    for path in sorted(path for path in folder.iterdir() if path.suffix in RAW_SUFFIXES):
        with path.open("rb") as file:
            read = file.read(INSPECTED_BYTES)
        tokens = np.frombuffer(read[: len(read) // token_size * token_size], dtype=f"<u{token_size}")
        if len(tokens) and (largest := int(tokens.max())) >= vocabulary:
            raise InvalidInput(
                f"--data {path} holds the token {largest}; --vocabulary {vocabulary} allows 0 to {vocabulary - 1}, and "
                "--token-size says how many bytes one has"
            )


def _quoted(text: str) -> str:
    return tomli_w.dumps({"a": text}).removeprefix("a = ").strip()


def _inline(table: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{key} = {_quoted(value)}" for key, value in table.items() if value != "") + " }"


def tokens_in_all(text: str, data: ChosenData) -> int:
    """Return the number of tokens of `--tokens`: a number, or a number of passes such as `3 passes`.

    Raises:
        InvalidInput: it is neither; or passes, where the size of the data is not known.
    """
    passes = re.fullmatch(r"\s*([0-9.]+)\s*pass(es)?\s*", text)
    if passes is None:
        try:
            return parse_count(text)
        except InvalidInput:
            raise InvalidInput(
                f"--tokens {text!r}; allowed: a number, such as 10B, or passes, such as '3 passes'"
            ) from None
    if data.tokens is None:
        raise InvalidInput(f"--tokens {text!r}: the size of these data is not known here; give a number, such as 10B")
    return max(1, math.ceil(float(passes[1]) * data.tokens))
