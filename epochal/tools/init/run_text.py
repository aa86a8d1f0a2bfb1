"""The text of a new run's `state.toml` and `data.toml`, made to be edited."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from epochal.state.config.schema import TokenSize
from epochal.state.config.state_file import MergeConfig
from epochal.tools.init.choices import ChosenData, ChosenModel
from epochal.tools.quality import OptimizerName, loss_factor, loss_of_local_steps, shown_loss

WARM_UP_PART = 50
"""One part in so many of the local steps warms the learning rate up."""
MAX_WARM_UP_STEPS = 500
MOST_CHECKPOINTS = 40
"""Of a new run: so many points has the curve of its held-out loss (`epochal evaluate --follow`)."""
BASE_LRS: Mapping[OptimizerName, float] = {"AdamW": 0.002, "Muon": 0.004}
"""Those with which a small model learnt most (docs/benchmarks-quality.md, docs/benchmarks-codecs.md)."""
FINAL_SHARE = 0.1
EMBEDDED_LR, EMBEDDED_FINAL_SHARE = 0.01, 0.2
"""Of the embedded model."""
COMMENT_COLUMN = 39
_BATCH_SOURCE = "at most local_steps times the critical batch (arXiv:2410.21676)"
_OPTIMIZER_LINES = {
    "AdamW": "betas = [0.9, 0.95]\neps = 1e-8\n",
    "Muon": "momentum = 0.95                         # of hidden matrices; AdamW moves the other tensors\n",
}
_COMMENT = re.compile(r"^((?:# )?[^#\s][^#\n]*?) {2,}(# .*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NewRun:
    """A new run, as it is wanted.

    Attributes:
        run_id: its name.
        model, data: chosen.
        seq_len: number of tokens of a sample.
        codec: fields of `[merge]` that go with the codec of results.
        access: who may join: "open", "keys" or "invitations".
        entries: the keys, or the invitations' digests, with which it begins.
        tokenizer: SHA-256 of the tokenizer of its data; None where it is not known.
        verify: percent of its results that verifiers compute again; None for none.
        optimizer: of the clients.
    """

    run_id: str
    model: ChosenModel
    data: ChosenData
    seq_len: int
    codec: Mapping[str, Any]
    access: str
    entries: tuple[str, ...] = ()
    tokenizer: str | None = None
    verify: int | None = None
    optimizer: OptimizerName = "AdamW"


def data_text(folder: str, token_size: int, seq_len: int, seed: bytes | None) -> str:
    """Return the text of a `data.toml`.

    Args:
        folder: of the token files.
        token_size: bytes of a token, 2 or 4.
        seq_len: number of tokens of a sample.
        seed: 32 bytes that shuffle; None for the files' order.
    """
    name = {2: TokenSize.TWO_BYTES, 4: TokenSize.FOUR_BYTES}[token_size].value
    shuffle = "" if seed is None else f"shuffle_seed = {list(seed)}\n"
    return f"""\
# The data of a run, for its data server: epochal coordinator state.toml --data-config data.toml
dir = {_value(folder)}
token_size = "{name}"
seq_len = {seq_len}                           # = model.LLM.max_seq_len of state.toml
{shuffle}"""


def state_text(run: NewRun, figures: Mapping[str, Mapping[str, Any]], pin: str = "") -> str:
    """Return the text of a `state.toml`.

    Args:
        run: what it is to be.
        figures: the values of `[config]`, `[merge]` and `[blobs]` that are not the same in every new run.
        pin: the line that pins the data, or a comment in its place.
    """
    room = figures["blobs"].get("max_total_bytes")
    parts = [_config_text(run.run_id, figures["config"]), pin, _model_text(run, figures["config"], figures["merge"])]
    if room is not None:
        parts.append(f"\n[blobs]\nmax_total_bytes = {room}          # of results and checkpoints, at the coordinator\n")
    if run.verify is not None:
        note = "                            # of the results are computed again: `epochal verifier`"
        parts.append(f"\n[verify]\npercent = {run.verify}{note}\n")
    if run.access != "open":
        parts.append(f'\n[access]\nmode = "{run.access}"\n{run.access} = {_value(list(run.entries))}\n')
    if run.model.hf is not None:
        parts.append(f"\n[model.LLM.hf]\n{tomli_w.dumps(_without_none(run.model.hf))}")
    return _COMMENT.sub(lambda found: f"{found[1]:<{COMMENT_COLUMN}} {found[2]}", "".join(parts))


def _config_text(run_id: str, config: Mapping[str, Any]) -> str:
    every = config["checkpoint_every"]
    return f"""\
# docs/state-file.md explains every line. `epochal plan state.toml --clients …` says how a round
# will go, also after you have changed something, and `epochal check state.toml` what is wrong.
run_id = {_value(run_id)}

[config]
warmup_time = {config["warmup_time"]}                       # seconds: a newcomer downloads the model in them
cooldown_time = {config["cooldown_time"]}                     # a client uploads a checkpoint in them
epoch_time = {config["epoch_time"]}                      # seconds; then the epoch ends with a checkpoint
max_round_train_time = {config["max_round_train_time"]}              # training and upload of a round
round_witness_time = {config["round_witness_time"]}                # messages of witnesses
waiting_for_members_extra_time = 3
client_timeout_s = {config["client_timeout_s"]}                  # a client that is silent for longer has left
min_clients = {config["min_clients"]}                         # fewer: the run waits
init_min_clients = {config["init_min_clients"]}                    # the run begins with so many
witness_nodes = 0                       # every client attests which results it holds
global_batch_size_start = {config["global_batch_size_start"]}  # samples of a round: {_BATCH_SOURCE}
global_batch_size_end = {config["global_batch_size_end"]}
global_batch_size_warmup_tokens = 0
total_steps = {config["total_steps"]}                       # rounds
checkpoint_every = {every}                    # rounds; each gives a point of `epochal evaluate --follow`
# max_share = 0.25                      # largest part of a round for one client; else docs/state-file.md says
"""


def checkpoint_every(total_steps: int) -> int:
    """Return the rounds between checkpoints of a run, for 20 to 40 of them; each round of a shorter run has one."""
    return max(1, -(-total_steps // MOST_CHECKPOINTS))


def _model_text(run: NewRun, config: Mapping[str, Any], merge: Mapping[str, Any]) -> str:
    is_small = run.model.hf is None
    base_lr = EMBEDDED_LR if is_small else BASE_LRS[run.optimizer]
    local_steps = int(config["total_steps"]) * int(merge["local_steps"])
    tokenizer = "" if run.tokenizer is None else f'tokenizer = "{run.tokenizer}"  # data of another one are refused\n'
    warm_up = min(MAX_WARM_UP_STEPS, max(1, local_steps // WARM_UP_PART))
    return f"""
[model.LLM]
architecture = "{run.model.architecture}"
data_type = "Pretraining"
max_seq_len = {run.seq_len}
checkpoint = "Ephemeral"                # begin with random parameters
data_location = {run.data.location}
{tokenizer}
[model.LLM.lr_schedule.Cosine]          # counts local steps: rounds x local_steps
base_lr = {base_lr:g}
warmup_init_lr = 0.0
warmup_steps = {warm_up}
final_lr = {(EMBEDDED_FINAL_SHARE if is_small else FINAL_SHARE) * base_lr:g}
total_steps = {local_steps}

[model.LLM.optimizer.{run.optimizer}]
{_OPTIMIZER_LINES[run.optimizer]}weight_decay = {0.0 if is_small else 0.1}
clip_grad_norm = 1.0

[merge]
local_steps = {merge["local_steps"]}                       # {_price(int(merge["local_steps"]), run.optimizer)}
{_codec_text(run.codec)}{_update_text(int(merge["local_steps"]))}{_repeatable_text(run, int(merge["local_steps"]))}"""


def _codec_text(fields: Mapping[str, Any]) -> str:
    note = "                          # of what clients send: docs/merging.md"
    return "".join(f"{name} = {_value(value)}{note if name == 'codec' else ''}\n" for name, value in fields.items())


def _update_text(local_steps: int) -> str:
    usual = MergeConfig(local_steps=local_steps)
    price = shown_loss(loss_factor(usual.model_copy(update={"update": "exact"}), usual))
    return f'# update = "{usual.update}"  # of what all clients receive; a small model: {price} beside "exact"\n'


def _price(local_steps: int, optimizer: OptimizerName) -> str:
    loss, text = loss_of_local_steps(local_steps, optimizer), "of each client in a round"
    return text if loss is None else f"{text}; a small model: {shown_loss(loss)} beside one machine with AdamW"


def _repeatable_text(run: NewRun, local_steps: int) -> str:
    if run.verify is None:
        return ""
    kept, reset = (MergeConfig(local_steps=local_steps, inner_state=state) for state in ("keep", "reset"))
    price = shown_loss(loss_factor(kept, reset, run.optimizer))
    return f'inner_state = "reset"                   # a small model: {price}; "keep": clients upload what they keep\n'


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _value(value: Any) -> str:
    return tomli_w.dumps({"a": value}).removeprefix("a = ").strip()
