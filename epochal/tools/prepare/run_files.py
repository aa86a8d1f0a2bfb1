"""The text of a `state.toml` for what was prepared: a run that starts as it is."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochal.tools.init.choices import BYTES_VOCABULARY, ChosenData, ChosenModel, llama_config
from epochal.tools.init.run_text import NewRun, checkpoint_every, state_text
from epochal.tools.prepare.prepare_options import DATA_ADDRESS
from epochal.tools.prepare.text_tokenizer import TokenizerIdentity

TOKENS_OF_A_ROUND = 65_536
MIN_ROUND_SAMPLES = 8
MIN_ROUNDS, MAX_ROUNDS = 20, 2000
LOCAL_STEPS = 8
MAX_RUN_ID_CHARS = 32


@dataclass(frozen=True, slots=True)
class RunShape:
    """The facts on which the files of a run depend.

    Attributes:
        run_id: names the run.
        tokenizer: of the data.
        seq_len: number of tokens of a sample.
        samples: number of samples of one pass.
        fingerprint: of the data, as `epochal data inspect` shows it.
        data_address: `host:port` of the run's data server.
        rows: folder of rows in parquet files, which clients read themselves; None for what a data server serves.
    """

    run_id: str
    tokenizer: TokenizerIdentity
    seq_len: int
    samples: int
    fingerprint: str
    data_address: str = DATA_ADDRESS
    rows: str | None = None

    @property
    def round_samples(self) -> int:
        """The number of samples of a round: fewer if a pass would have fewer rounds than the run."""
        return max(MIN_ROUND_SAMPLES, min(TOKENS_OF_A_ROUND // self.seq_len, self.samples // MIN_ROUNDS))

    @property
    def rounds(self) -> int:
        """The number of rounds: one pass over the data, within bounds."""
        return min(MAX_ROUNDS, max(MIN_ROUNDS, -(-self.samples // self.round_samples)))


def run_id_of(folder: Path) -> str:
    """Return the ID of the run of a folder: its name, as far as a run may be called so."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    return name[:MAX_RUN_ID_CHARS].strip("-") or "prepared"


def state_toml(shape: RunShape) -> str:
    """Return a `state.toml` that starts: the embedded model for bytes, else a small Llama with the vocabulary."""
    is_bytes = shape.tokenizer.vocabulary <= BYTES_VOCABULARY
    model = ChosenModel("EpochalNgram", None) if is_bytes else ChosenModel("HfLlama", _small_llama(shape))
    location = f'Server = "{shape.data_address}"'
    if shape.rows is not None:
        location = f"Preprocessed = {json.dumps(shape.rows, ensure_ascii=False)}"
    run = NewRun(
        shape.run_id,
        model,
        ChosenData(f"{{ {location} }}", None, None),
        shape.seq_len,
        codec={"codec": "int4"},
        access="open",
        tokenizer=shape.tokenizer.sha256,
    )
    # a client of torch imports it, and a Llama's round takes longer
    warmup_s, train_s = (30, 60) if is_bytes else (120, 600)
    config = {
        "warmup_time": warmup_s,
        "cooldown_time": warmup_s,
        "epoch_time": 10 * train_s,
        "max_round_train_time": train_s,
        "round_witness_time": 10,
        "client_timeout_s": 30,
        "min_clients": 1,
        "init_min_clients": 1,
        "global_batch_size_start": shape.round_samples,
        "global_batch_size_end": shape.round_samples,
        "total_steps": shape.rounds,
        "checkpoint_every": checkpoint_every(shape.rounds),
    }
    figures: Mapping[str, Mapping[str, Any]] = {"config": config, "merge": {"local_steps": LOCAL_STEPS}, "blobs": {}}
    return state_text(run, figures, f'data_fingerprint = "{shape.fingerprint}"\n')


def _small_llama(shape: RunShape) -> dict[str, Any]:
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4}
    ends = {"num_key_value_heads": 2, "bos_token_id": shape.tokenizer.end_id, "eos_token_id": shape.tokenizer.end_id}
    return llama_config(sizes, shape.tokenizer.vocabulary, shape.seq_len) | ends
