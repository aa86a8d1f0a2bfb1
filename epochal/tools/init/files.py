"""The text of a new run's `state.toml` and `data.toml`: with the figures that the planner proposes, and why."""

import asyncio
import contextlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from epochal.data_providers.open_data import OpenOptions, open_described, open_location, run_data
from epochal.runtime.permissions import OWNERS
from epochal.runtime.visible_text import visible
from epochal.state.config.data_file import DataConfig, parse_data_config
from epochal.state.config.schema import TokenSize
from epochal.state.config.state_file import StateFile, parse_state
from epochal.state.errors import EpochalError, InternalError
from epochal.state.round_model import ClientGroup
from epochal.tools.init.choices import ChosenData, ChosenModel
from epochal.tools.init.proposal import Proposal, proposed
from epochal.tools.plan.plans import PlanOptions

WARM_UP_PART = 50
"""One part in so many of the local steps warms the learning rate up."""
MAX_WARM_UP_STEPS = 500
DRAFT = "the draft of state.toml"
OPEN_TIMEOUT_S = 20.0
"""Seconds within which the data must be open for their fingerprint to be known."""
COMMENT_COLUMN = 39
UNPINNED = """\
# data_fingerprint = "…"                # `epochal data inspect` shows it. Not known here: {reason}
"""
_COMMENT = re.compile(r"^([^#\s][^#\n]*?) {2,}(# .*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NewRun:
    """A new run, as it is wanted.

    Attributes:
        run_id: its name.
        model, data: chosen.
        seq_len: number of tokens of a sample.
        codec: of results.
        access: who may join: "open", "keys" or "invitations".
        entries: the keys, or the invitations' digests, with which it begins.
    """

    run_id: str
    model: ChosenModel
    data: ChosenData
    seq_len: int
    codec: str
    access: str
    entries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """The files of a new run.

    Attributes:
        state: the text of `state.toml`.
        data: the text of `data.toml`; None for a run without a data server.
        proposal: the figures in the first, and the plan with them.
        unpinned: why the first does not pin the fingerprint of the data; "" if it does.
    """

    state: str
    data: str | None
    proposal: Proposal
    unpinned: str


_DRAFT: Mapping[str, Mapping[str, float]] = {
    "config": {
        "warmup_time": 60,
        "cooldown_time": 60,
        "epoch_time": 3600,
        "max_round_train_time": 60,
        "round_witness_time": 10,
        "min_clients": 1,
        "init_min_clients": 1,
        "global_batch_size_start": 8,
        "global_batch_size_end": 8,
        "total_steps": 100,
        "client_timeout_s": 30,
    },
    "merge": {"local_steps": 8},
    "blobs": {},
}
"""Figures with which the planner begins; it replaces them."""


def files_of(
    run: NewRun, groups: Sequence[ClientGroup], options: PlanOptions, total_tokens: int | None, token_size: int
) -> Written:
    """Return the files of a run, with timers and sizes that hold for these clients.

    Args:
        run: what it is to be.
        groups: its clients.
        options: of the plan: links and costs.
        total_tokens: to be trained in all; None for a hundred rounds.
        token_size: bytes of a token of the data server's files.

    Raises:
        InvalidInput: the planner cannot plan with these clients, or a value is not allowed.
        Unsupported: the model cannot be laid out with what is installed here.
    """
    data = None if run.data.folder is None else _data_text(run, str(run.data.folder.resolve()), token_size)
    pin, unpinned = _pin(parse_state(_state_text(run, _DRAFT), DRAFT), data)
    draft = parse_state(_state_text(run, _DRAFT, pin), DRAFT)
    proposal = proposed(draft, groups, options, total_tokens=total_tokens)
    figures: dict[str, dict[str, Any]] = {
        "config": {**_DRAFT["config"], "total_steps": draft.config.total_steps, **proposal.config},
        "merge": proposal.merge,
        "blobs": proposal.blobs,
    }
    text = _state_text(run, figures, pin)
    _check_is(parse_state(text, "state.toml"), proposal.state)
    return Written(text, data, proposal, unpinned)


def _pin(state: StateFile, data: str | None) -> tuple[str, str]:
    """Return the line that pins the data, or a comment in its place; and why they are not pinned, "" if they are."""
    try:
        served = None if data is None else parse_data_config(data, "data.toml")
        return f'data_fingerprint = "{asyncio.run(_fingerprint_of(state, served))}"\n', ""
    except (EpochalError, TimeoutError) as error:
        reason = visible(str(error)) or f"they did not answer within {OPEN_TIMEOUT_S:g} s"
        return UNPINNED.format(reason=reason), reason


async def _fingerprint_of(state: StateFile, served: DataConfig | None) -> str:
    """Return the fingerprint of a run's data: of its data server's, or of those that its clients open themselves."""
    async with asyncio.timeout(OPEN_TIMEOUT_S):
        opening = (
            open_location(*run_data(state), OpenOptions(state.run_id, None, OWNERS))
            if served is None
            else open_described(served, Path())
        )
        async with contextlib.aclosing(await opening) as provider:
            return provider.fingerprint


def _check_is(found: StateFile, wanted: StateFile) -> None:
    for table in ("config", "merge", "blobs"):
        if getattr(found, table) != getattr(wanted, table):
            raise InternalError(f"the written [{table}] is not the one that was planned")


def _data_text(run: NewRun, folder: str, token_size: int) -> str:
    name = {2: TokenSize.TWO_BYTES, 4: TokenSize.FOUR_BYTES}[token_size].value
    seed = list(secrets.token_bytes(32))
    return f"""\
# The data of run {run.run_id}, for its data server: epochal coordinator state.toml --data-config data.toml
dir = {_value(folder)}
token_size = "{name}"
seq_len = {run.seq_len}                           # = model.LLM.max_seq_len of state.toml
shuffle_seed = {seed}
"""


def _state_text(run: NewRun, figures: Mapping[str, Mapping[str, Any]], pin: str = "") -> str:
    room = figures["blobs"].get("max_total_bytes")
    parts = [_config_text(run.run_id, figures["config"]), pin, _model_text(run, figures["config"], figures["merge"])]
    if room is not None:
        parts.append(f"\n[blobs]\nmax_total_bytes = {room}          # of results and checkpoints, at the coordinator\n")
    if run.access != "open":
        parts.append(f'\n[access]\nmode = "{run.access}"\n{run.access} = {_value(list(run.entries))}\n')
    if run.model.hf is not None:
        parts.append(f"\n[model.LLM.hf]\n{tomli_w.dumps(_without_none(run.model.hf))}")
    return _COMMENT.sub(lambda found: f"{found[1]:<{COMMENT_COLUMN}} {found[2]}", "".join(parts))


def _config_text(run_id: str, config: Mapping[str, Any]) -> str:
    return f"""\
# Made by `epochal init`; docs/state-file.md explains every line. `epochal plan state.toml --clients …` says how a round
# will go, also after you have changed something, and `epochal check state.toml` what is wrong.
run_id = {_value(run_id)}

[config]
warmup_time = {config["warmup_time"]:g}                       # seconds: a newcomer downloads the model in them
cooldown_time = {config["cooldown_time"]:g}                     # a client uploads a checkpoint in them
epoch_time = {config["epoch_time"]:g}                      # no round begins after them: a checkpoint as often
max_round_train_time = {config["max_round_train_time"]:g}              # training and upload of a round
round_witness_time = {config["round_witness_time"]:g}                # messages of witnesses
waiting_for_members_extra_time = 3
client_timeout_s = {config["client_timeout_s"]:g}                  # a client that is silent for longer has left
min_clients = {config["min_clients"]}                         # fewer: the run waits
init_min_clients = {config["init_min_clients"]}                    # the run begins with so many
witness_nodes = 0                       # every client attests which results it holds
global_batch_size_start = {config["global_batch_size_start"]}             # samples of a round, of all clients together
global_batch_size_end = {config["global_batch_size_end"]}
global_batch_size_warmup_tokens = 0
total_steps = {config["total_steps"]}                       # rounds
checkpoint_every = 0                    # rounds between checkpoints, beside those of each epoch; 0: none
# max_share = 0.25                      # largest part of a round for one client; else docs/state-file.md says
"""


def _model_text(run: NewRun, config: Mapping[str, Any], merge: Mapping[str, Any]) -> str:
    is_small = run.model.hf is None
    local_steps = int(config["total_steps"]) * int(merge["local_steps"])
    warm_up = min(MAX_WARM_UP_STEPS, max(1, local_steps // WARM_UP_PART))
    return f"""
[model.LLM]
architecture = "{run.model.architecture}"
data_type = "Pretraining"
max_seq_len = {run.seq_len}
checkpoint = "Ephemeral"                # begin with random parameters
data_location = {run.data.location}

[model.LLM.lr_schedule.Cosine]          # counts local steps: rounds x local_steps
base_lr = {0.01 if is_small else 0.002}
warmup_init_lr = 0.0
warmup_steps = {warm_up}
final_lr = {0.002 if is_small else 0.0002}
total_steps = {local_steps}

[model.LLM.optimizer.AdamW]
betas = [0.9, 0.95]
weight_decay = {0.0 if is_small else 0.1}
eps = 1e-8
clip_grad_norm = 1.0

[merge]
local_steps = {merge["local_steps"]}                       # of each client in a round
codec = "{run.codec}"                          # of what clients send: docs/merging.md
"""


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _value(value: Any) -> str:
    return tomli_w.dumps({"a": value}).removeprefix("a = ").strip()
