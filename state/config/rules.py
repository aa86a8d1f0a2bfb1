"""Rules of a state file that span several fields."""

from fractions import Fraction

from epochal.state.config.mistakes import Rule
from epochal.state.config.model_table import HF_ARCHITECTURES, Architecture, DataType
from epochal.state.config.schema import tag_of
from epochal.state.config.verify_table import agrees_with_psyches

WANT_FEEDBACK = ("int2", "sparse")
"""Codecs that leave out so much of each difference that error feedback has to add it later."""


def _decimal(number: float) -> Fraction:
    return Fraction(str(number))  # 0.3 is three tenths, as it is written


RULES = (
    Rule(("config.warmup_time", "config.epoch_time"), lambda a, b: a < b, "less than config.epoch_time, {1}"),
    Rule(("config.max_round_train_time", "config.epoch_time"), lambda a, b: a < b, "less than config.epoch_time, {1}"),
    Rule(
        ("config.min_clients", "config.init_min_clients"),
        lambda least, first: least <= first,
        "at most config.init_min_clients, {1}",
    ),
    Rule(
        ("config.witness_nodes", "config.min_clients"),
        lambda witnesses, least: witnesses <= least,
        "0 (everyone), or at most config.min_clients, {1}",
    ),
    Rule(
        ("config.global_batch_size_start", "config.global_batch_size_end"),
        lambda start, end: start <= end,
        "at most config.global_batch_size_end, {1}",
    ),
    Rule(
        ("progress.epoch_start_data_index", "config.data_indices_per_batch"),
        lambda index, size: index % size == 0,
        "a multiple of config.data_indices_per_batch, {1}",
    ),
    Rule(
        ("model.LLM.cold_start_warmup_steps", "config.epoch_time", "config.warmup_time", "config.max_round_train_time"),
        lambda steps, epoch, warmup, train: (
            steps == 0 or warmup >= epoch or steps * _decimal(train) <= _decimal(epoch) - _decimal(warmup)
        ),
        "what fits in one epoch: at most (config.epoch_time − config.warmup_time) / config.max_round_train_time, "
        "({1} − {2}) / {3}",
    ),
    Rule(
        ("model.LLM.hf", "model.LLM.architecture"),
        lambda config, kind: config is None or kind in HF_ARCHITECTURES,
        "no such table where model.LLM.architecture is {1}; it is the config of an `Hf…` one",
    ),
    Rule(
        ("model.LLM.architecture", "model.LLM.custom"),
        lambda kind, custom: kind != Architecture.CUSTOM or custom is not None,
        '"Custom" only with a table `[model.LLM.custom]`, whose `trainer` names the trainer',
    ),
    Rule(
        ("model.LLM.custom", "model.LLM.architecture"),
        lambda custom, kind: custom is None or kind == Architecture.CUSTOM,
        'no such table where model.LLM.architecture is {1}; only "Custom" has one',
    ),
    Rule(
        ("model.LLM.data_type", "model.LLM.architecture"),
        lambda data, kind: data != DataType.MULTIMODAL or kind == Architecture.CUSTOM,
        '"Pretraining" or "Finetuning" where model.LLM.architecture is {1}; only a "Custom" model reads images',
    ),
    Rule(
        ("model.LLM.adapter", "model.LLM.architecture"),
        lambda adapter, kind: adapter is None or kind in HF_ARCHITECTURES,
        "no such table where model.LLM.architecture is {1}; an `Hf…` one may have it",
    ),
    Rule(
        ("model.LLM.adapter", "model.LLM.checkpoint"),
        lambda adapter, checkpoint: adapter is None or tag_of(checkpoint) not in ("Ephemeral", "Dummy"),
        "no such table where model.LLM.checkpoint is {1}; it names the base, a repository or a folder",
    ),
    Rule(
        ("model.LLM.adapter", "access.genesis"),
        lambda adapter, genesis: adapter is None or genesis != "members",
        "no such table where access.genesis is {1}: the operator says which files the base has",
    ),
    Rule(
        ("packing.task_encoder", "model.LLM.data_type"),
        lambda encoder, kind: encoder is None or kind == DataType.FINETUNING,
        'no such line where model.LLM.data_type is {1}; only "Finetuning" packs',
    ),
    Rule(
        ("merge.error_feedback", "merge.codec"),
        lambda feedback, codec: feedback or codec not in WANT_FEEDBACK,
        "true where merge.codec is {1}, which leaves out much of each difference",
    ),
    Rule(
        ("merge.error_feedback", "merge.codec"),
        lambda feedback, codec: not feedback or codec != "float32",
        "false where merge.codec is {1}, which leaves nothing out",
    ),
    Rule(
        ("merge.mean", "merge.codec"),
        lambda mean, codec: mean == "all" or codec == "sparse",
        '"all" where merge.codec is {1}: only "sparse" does not send every element',
    ),
    Rule(
        ("config.verification_percent", "verify"),
        agrees_with_psyches,
        "0, or the percent of [verify], which it is another name for",
    ),
    Rule(
        ("notify.webhooks",),
        lambda webhooks: all(
            of.get("secret") is None or str(of.get("url")).startswith(("https://", "http://", "env:"))
            for of in map(dict, webhooks)
        ),
        'a secret only where url is "https://…" or "http://…"; the others take no signature',
    ),
    Rule(
        ("access.keys", "access.mode"),
        lambda keys, mode: not keys or mode == "keys",
        'keys only where access.mode is "keys"; access.mode is {1}',
    ),
    Rule(
        ("access.invitations", "access.mode"),
        lambda invitations, mode: not invitations or mode == "invitations",
        'invitations only where access.mode is "invitations"; access.mode is {1}',
    ),
)
"""Every rule of a state file over several fields."""
