"""A small state file for tests, with any field replaced by its dotted path."""

from typing import Any

import tomli_w

from epochal.state.config.state_file import StateFile, parse_state


def state_tables(**overrides: Any) -> dict[str, Any]:
    """The state file as tables; `config__min_clients=2` replaces `config.min_clients`."""
    tables: dict[str, Any] = {
        "run_id": "test-run",
        "config": {
            "warmup_time": 30,
            "cooldown_time": 30,
            "epoch_time": 600,
            "max_round_train_time": 60,
            "round_witness_time": 10,
            "waiting_for_members_extra_time": 1,
            "min_clients": 1,
            "init_min_clients": 2,
            "witness_nodes": 0,
            "global_batch_size_start": 12,
            "global_batch_size_end": 12,
            "global_batch_size_warmup_tokens": 0,
            "total_steps": 4,
            "client_timeout_s": 20,
        },
        "model": {
            "LLM": {
                "max_seq_len": 16,
                "architecture": "EpochalNgram",
                "data_type": "Pretraining",
                "data_location": "Dummy",
                "checkpoint": "Ephemeral",
                "lr_schedule": {"Constant": {"base_lr": 0.001, "warmup_init_lr": 0.0, "warmup_steps": 0}},
                "optimizer": {"AdamW": {"betas": [0.9, 0.95], "weight_decay": 0.0, "eps": 1e-8, "clip_grad_norm": 1.0}},
            }
        },
    }
    for path, value in overrides.items():
        *parents, name = path.split("__")
        table = tables
        for parent in parents:
            table = table.setdefault(parent, {})
        table[name] = value
    return tables


def state_text(**overrides: Any) -> str:
    """The same as TOML."""
    return tomli_w.dumps(state_tables(**overrides))


def state_file(**overrides: Any) -> StateFile:
    """The same, validated."""
    return parse_state(state_text(**overrides), "state.toml")
