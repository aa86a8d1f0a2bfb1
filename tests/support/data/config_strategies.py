"""Hypothesis strategies of whole state files and of their parts."""

from typing import Any

import tomli_w
from hypothesis import strategies as st

from epochal.state.config.model_table import Architecture, DataType
from epochal.state.config.state_file import StateFile, parse_state
from epochal.state.phase_names import RunState
from tests.support.data.states import state_tables

naturals = st.integers(0, 2**63 - 1)
positives = st.integers(1, 2**63 - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)
durations = st.floats(0, 1e9, exclude_min=True)
text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
seeds = st.lists(st.integers(0, 255), min_size=32, max_size=32)
hex_digests = st.text("0123456789abcdef", min_size=64, max_size=64)
shuffles = st.one_of(st.just("DontShuffle"), st.fixed_dictionaries({"Seeded": seeds}))
repositories = st.fixed_dictionaries({"repo_id": text}, optional={"revision": text})
names = st.from_regex(r"[a-z0-9]{1,24}", fullmatch=True)
buckets = st.fixed_dictionaries({"bucket": names}, optional={"prefix": text})


def variant(name: str, content: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({name: content})


def table(fields: str, values: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return dict.fromkeys(fields.split(), values)


http_locations = st.one_of(
    variant("SingleUrl", st.just("https://h/x")),
    variant(
        "NumberedFiles",
        st.fixed_dictionaries(
            {
                **dict(table("start_index", naturals)),
                **{
                    "url_template": st.just("http://h/{}"),
                    "n_left_pad_zeros": st.integers(0, 255),
                    "num_files": positives,
                },
            }
        ),
    ),
    variant("Urls", st.lists(st.just("https://h/x"), min_size=1, max_size=3)),
    variant("S3", st.fixed_dictionaries({"bucket_name": names}, optional={"region": names})),
    variant("Azure", st.fixed_dictionaries({"account_name": names, "container_name": names})),
    variant("Gcp", st.fixed_dictionaries({"bucket_name": names, "filter_directory": text | st.just("")})),
)

data_locations = st.one_of(
    st.just("Dummy"),
    variant("Server", st.just("[::1]:80")),
    variant("Local", text),
    variant("WeightedHttp", st.just("https://h/mix.json")),
    variant("Preprocessed", text),
    variant(
        "Http",
        st.fixed_dictionaries(
            {
                "location": http_locations,
                "token_size_in_bytes": st.sampled_from(["TwoBytes", "FourBytes"]),
                "shuffle": shuffles,
            }
        ),
    ),
)

checkpoints = st.one_of(
    st.just("Ephemeral"),
    variant("Local", text),
    *(variant(name, repositories) for name in ("Dummy", "Hub", "P2P")),
    *(variant(name, buckets) for name in ("Gcs", "P2PGcs", "S3")),
)

warmup = {**table("base_lr warmup_init_lr", numbers), **table("warmup_steps", naturals)}
decay = {**warmup, **table("final_lr", numbers), **table("total_steps", naturals)}
schedules = st.one_of(
    variant("Constant", st.fixed_dictionaries(warmup)),
    variant("Linear", st.fixed_dictionaries(decay)),
    variant("Cosine", st.fixed_dictionaries(decay)),
    variant(
        "WarmupStableDecay",
        st.fixed_dictionaries(
            {
                **warmup,
                **table("stable_steps cosine_decay_steps linear_decay_steps", naturals),
                **table("cosine_decay_final_lr linear_decay_final_lr", numbers),
            }
        ),
    ),
)

betas = st.floats(0, 1, exclude_max=True)
optimizers = st.one_of(
    st.just("Dummy"),
    variant(
        "AdamW",
        st.fixed_dictionaries(
            {"betas": st.lists(betas, min_size=2, max_size=2), "weight_decay": durations, "eps": durations},
            optional={"clip_grad_norm": durations},
        ),
    ),
    variant(
        "Distro",
        st.fixed_dictionaries(
            {
                "compression_decay": numbers,
                "compression_topk": positives,
                "compression_chunk": positives,
                "quantize_1bit": st.booleans(),
            },
            optional={"clip_grad_norm": durations, "weight_decay": durations},
        ),
    ),
)


custom_tables = st.fixed_dictionaries(
    {"trainer": text.filter(lambda name: ":" not in name)},
    optional={
        "name": text,
        "sizes": st.lists(naturals),
        "rate": numbers,
        "layer": st.dictionaries(text, st.booleans()),
    },
)


@st.composite
def accesses(draw: st.DrawFn) -> dict[str, Any]:
    mode = draw(st.sampled_from(["open", "keys", "invitations"]))
    return {"mode": mode, **({mode: draw(st.lists(hex_digests, min_size=1, max_size=3))} if mode != "open" else {})}


@st.composite
def state_files(draw: st.DrawFn) -> StateFile:
    """Any state file whose rules hold, as the tables that a file would hold."""
    tables = state_tables()
    per_batch = draw(st.integers(1, 1000))
    least, first = sorted(draw(st.tuples(positives, positives)))
    tables["run_id"] = draw(st.text("abcé-._ /", min_size=1, max_size=16))
    tables["run_state"] = draw(st.sampled_from([phase.value for phase in RunState]))
    tables["config"] |= {
        "min_clients": least,
        "init_min_clients": first,
        "witness_nodes": draw(st.integers(0, least)),
        "global_batch_size_end": draw(st.integers(12, 2**63 - 1)),
        "global_batch_size_warmup_tokens": draw(naturals),
        "total_steps": draw(positives),
        "data_indices_per_batch": per_batch,
        "cooldown_time": draw(durations),
        "client_timeout_s": draw(durations | st.integers(1, 1000)),
        "on_bad_data": draw(st.sampled_from(["quarantine", "stop"])),
    }
    tables["progress"] = {
        "epoch": draw(naturals),
        "step": draw(positives),
        "epoch_start_data_index": per_batch * draw(st.integers(0, 2**40)),
    }
    tables["model"]["LLM"] |= {
        "architecture": draw(st.sampled_from([kind.value for kind in Architecture])),
        "data_type": draw(st.sampled_from([kind.value for kind in DataType])),
        "data_location": draw(data_locations),
        "checkpoint": draw(checkpoints),
        "lr_schedule": draw(schedules),
        "optimizer": draw(optimizers),
    }
    if tables["model"]["LLM"]["architecture"] == "Custom":
        tables["model"]["LLM"]["custom"] = draw(custom_tables)
    tables["access"] = draw(accesses())
    tables["packing"] = {
        "pool_size": draw(st.integers(1, 65_536)),
        "oversized": draw(st.sampled_from(["error", "split"])),
    }
    if tables["model"]["LLM"]["data_type"] == "Finetuning":
        tables["packing"]["task_encoder"] = "chat"
    tables["merge"] = {"inner_state": draw(st.sampled_from(["keep", "reset"])), "outer_momentum": draw(betas)}
    return parse_state(tomli_w.dumps(tables), "state.toml")
