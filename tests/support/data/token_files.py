"""Token files for real runs: 400 sequences of 16 byte tokens, and a data server's file beside them."""

from pathlib import Path

import numpy as np
import tomli_w
from numpy.typing import NDArray

from tests.support.servers.ports import free_port

SEQ_LEN = 16
SEQUENCES = 400


def write_tokens(folder: Path, bad_index: int | None = None) -> Path:
    """Return a file of tokens in the folder; the sequence `bad_index` holds a token that is not a byte."""
    folder.mkdir(parents=True)
    tokens = (np.arange(SEQUENCES * SEQ_LEN) * 7 % 256).astype("<u2")
    if bad_index is not None:
        tokens[bad_index * SEQ_LEN + 3] = 999
    tokens.tofile(folder / "tokens.bin")
    return folder / "tokens.bin"


def write_in_place(path: Path, tokens: NDArray[np.uint16]) -> None:
    """Replace a file's tokens by as many others."""
    with path.open("r+b") as file:
        file.write(tokens.tobytes())


def write_served_tokens(folder: Path) -> tuple[Path, int]:
    """Write tokens and return the `data.toml` of a server for them, and a port that is free for it."""
    write_tokens(folder / "data")
    config = folder / "data.toml"
    config.write_text(tomli_w.dumps({"dir": "data", "token_size": "TwoBytes", "seq_len": SEQ_LEN}))
    return config, free_port()
