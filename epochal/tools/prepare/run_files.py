"""The text of `state.toml` and `data.toml`: a run that starts as they are, made to be edited."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from epochal.tools.prepare.prepare_options import DATA_ADDRESS
from epochal.tools.prepare.text_tokenizer import BYTES_VOCABULARY, TokenizerIdentity

TOKENS_OF_A_ROUND = 65_536
MIN_ROUND_SAMPLES = 8
MIN_ROUNDS, MAX_ROUNDS = 20, 2000
LOCAL_STEPS = 8
MAX_RUN_ID_CHARS = 32
TOKEN_SIZES = {2: "TwoBytes", 4: "FourBytes"}


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


def data_toml(folder: str, tokenizer: TokenizerIdentity, seq_len: int, seed: bytes | None) -> str:
    """Return the `data.toml` of a split.

    Args:
        folder: of the shards, beside the file.
        tokenizer: of the shards.
        seq_len: number of tokens of a sample.
        seed: 32 bytes that shuffle; None for the files' order.
    """
    lines = [
        f"# Shards that `epochal prepare` wrote with the tokenizer {tokenizer.name}.",
        f'dir = "{folder}"',
        f'token_size = "{TOKEN_SIZES[tokenizer.token_size]}"',
        f"seq_len = {seq_len}                           # = model.LLM.max_seq_len of state.toml",
    ]
    if seed is not None:
        lines.append(f"shuffle_seed = {list(seed)}")
    return "\n".join(lines) + "\n"


def state_toml(shape: RunShape) -> str:
    """Return a `state.toml` that starts: the embedded model for bytes, else a small Llama with the vocabulary."""
    is_bytes = shape.tokenizer.vocabulary <= BYTES_VOCABULARY
    passes = shape.rounds * shape.round_samples / max(1, shape.samples)
    steps = shape.rounds * LOCAL_STEPS
    # a client of torch imports it, and a Llama's round takes longer
    warmup_s, train_s = (30, 60) if is_bytes else (120, 600)
    return f"""\
# A run on the shards beside this file. It starts as it is; docs/state-file.md explains every line.
run_id = "{shape.run_id}"

[config]
warmup_time = {warmup_s}
cooldown_time = {warmup_s}
epoch_time = {10 * train_s}                       # a checkpoint at least as often
max_round_train_time = {train_s}
round_witness_time = 10
waiting_for_members_extra_time = 1
min_clients = 1
init_min_clients = 1                    # the first client starts the run
witness_nodes = 0                       # everyone attests
global_batch_size_start = {shape.round_samples}            # samples of a round, of all clients together
global_batch_size_end = {shape.round_samples}
global_batch_size_warmup_tokens = 0
total_steps = {shape.rounds}                       # rounds: {passes:.2g} passes over {shape.samples} samples
data_fingerprint = "{shape.fingerprint}"

[model.LLM]
architecture = "{"EpochalNgram" if is_bytes else "HfLlama"}"
data_type = "Pretraining"
max_seq_len = {shape.seq_len}
checkpoint = "Ephemeral"                # begin with random parameters
data_location = {{ {_location(shape)} }}
tokenizer = "{shape.tokenizer.sha256}"      # data of another one are refused

[model.LLM.lr_schedule.Cosine]
base_lr = {"0.01" if is_bytes else "0.002"}
warmup_init_lr = 0.0
warmup_steps = {min(16, steps // 2)}
final_lr = {"0.002" if is_bytes else "0.0002"}
total_steps = {steps}                      # rounds x local steps

[model.LLM.optimizer.AdamW]
betas = [0.9, 0.95]
weight_decay = {"0.0" if is_bytes else "0.1"}
eps = 1e-8
clip_grad_norm = 1.0

[merge]
local_steps = {LOCAL_STEPS}
{"" if is_bytes else _llama(shape)}"""


def _location(shape: RunShape) -> str:
    if shape.rows is None:
        return f'Server = "{shape.data_address}"'
    return f"Preprocessed = {json.dumps(shape.rows, ensure_ascii=False)}"


def _llama(shape: RunShape) -> str:
    end = shape.tokenizer.end_id
    return f"""
[model.LLM.hf]                          # a small one: make it larger
model_type = "llama"
vocab_size = {shape.tokenizer.vocabulary}
hidden_size = 256
intermediate_size = 768
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = {shape.seq_len}
tie_word_embeddings = true
bos_token_id = {end}
eos_token_id = {end}
"""
