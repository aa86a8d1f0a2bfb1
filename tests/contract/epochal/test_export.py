"""Exports of a run's checkpoints: the folder, what `transformers` makes of it, and where it is uploaded to."""

import asyncio
import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.runtime.retry import RetryPolicy
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, InvalidInput, ModelUnavailable, Refused
from epochal.state.model.replica import Replica, first_replica
from epochal.state.model.tensors import Tensors
from epochal.state.refusals import Refusal
from epochal.tools.export import folder as export_folder
from epochal.tools.export import folder as export_plan
from epochal.tools.export.destinations import HubDestination, parse_destination, step_name
from epochal.tools.export.exporter import Exporter, ExportOptions
from epochal.tools.export.folder import read_note
from epochal.trainers.sources.float_types import FloatType
from epochal.trainers.sources.local_model import local_source
from tests.support.data.states import state_file
from tests.support.drive.listed_run import ListedRun
from tests.support.heavy import need_module
from tests.support.servers.hub_server import REPOSITORY, FakeHub, fake_hub, point_at

VALUES: Tensors = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3) / np.float32(3),
    "b": np.array([0.5, -1.25], np.float32),
}
SPEC = ModelSpec(architecture=Architecture.HF_LLAMA, hf={"model_type": "llama", "rope_theta": 10000.0})
STATE = state_file()
PATIENT = RetryPolicy(first_delay_s=0.0, max_delay_s=0.0, bound_s=60.0)


def at_step(step: int) -> Replica:
    return replace(first_replica(step, VALUES), momentum={name: values + step for name, values in VALUES.items()})


def options(out: Path, **changes: Any) -> ExportOptions:
    return replace(ExportOptions(out, FloatType.FLOAT32, {"tokenizer.json": b"{}"}), **changes)


async def exported(run: ListedRun, chosen: ExportOptions, step: int | None = None) -> None:
    await Exporter(run, chosen, lambda _: None).once(step)


async def followed(run: ListedRun, chosen: ExportOptions) -> list[str]:
    said: list[str] = []
    await Exporter(run, chosen, said.append).follow(PATIENT)
    return said


def values_in(folder: Path) -> dict[str, list[float]]:
    shapes = {name: values.shape for name, values in VALUES.items()}
    return {name: values.reshape(-1).tolist() for name, values in local_source(folder).tensors(shapes)}


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def json_of(path: Path) -> Any:
    return json.loads(path.read_text())


def time_of(path: Path) -> int:
    return path.stat().st_mtime_ns


EXPECTED = {name: values.reshape(-1).tolist() for name, values in VALUES.items()}


def partial_of_another(folder: Path) -> Path:
    folder.mkdir()
    (folder / "mine").write_text("x")
    return folder


async def test_checkpoint_without_momentum_is_exported_as_one_with_it(tmp_path: Path) -> None:
    for name, has_momentum in (("with", True), ("without", False)):
        run = ListedRun([first_replica(1, VALUES, has_momentum)])
        await exported(run, options(tmp_path / name))
    assert values_in(tmp_path / "without") == values_in(tmp_path / "with")


async def test_config_says_nothing_of_other_weights_and_absent_code(tmp_path: Path) -> None:
    more = {"quantization_config": {"quant_method": "fp8"}, "auto_map": {"AutoConfig": "hub/repo--c.C"}}
    spec = ModelSpec(architecture=Architecture.HF_LLAMA, hf={"model_type": "llama", **more})
    await exported(ListedRun([at_step(1)], spec=spec), options(tmp_path / "model"))
    assert not more.keys() & json_of(tmp_path / "model" / "config.json").keys()


async def test_export_is_a_folder_that_a_run_can_start_from(tmp_path: Path) -> None:
    out = tmp_path / "model"
    await exported(ListedRun([at_step(2), at_step(7)]), options(out))
    assert names_of(out) == ["config.json", "epochal.json", "model.safetensors", "tokenizer.json"]
    assert values_in(out) == EXPECTED
    config = json_of(out / "config.json")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["torch_dtype"], config["rope_theta"]) == ("float32", 10000.0)
    note = read_note(out)
    assert note is not None
    assert (note.run_id, note.step, note.dtype) == ("test-run", 7, "float32")
    assert names_of(tmp_path) == ["model"]
    await exported(ListedRun([at_step(2), at_step(7)]), options(tmp_path / "earlier"), step=2)
    with pytest.raises(InvalidInput, match=r"holds no checkpoint of step 3; allowed: 2, 7"):
        await exported(ListedRun([at_step(2), at_step(7)]), options(tmp_path / "none"), step=3)


@pytest.mark.parametrize("kind", FloatType)
async def test_shards_have_an_index_and_the_type_that_was_asked_for(
    tmp_path: Path, kind: FloatType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_folder, "CHUNK_NUMBERS", 2)
    monkeypatch.setattr(export_plan, "MAX_SHARD_BYTES", 6 * kind.size_bytes)
    out = tmp_path / "model"
    await exported(ListedRun([at_step(7)]), options(out, kind=kind))
    index = json_of(out / "model.safetensors.index.json")
    assert sorted(set(index["weight_map"].values())) == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    assert index["metadata"] == {"total_size": 8 * kind.size_bytes, "total_parameters": 8}
    for name, values in values_in(out).items():
        assert np.allclose(values, EXPECTED[name], rtol=2.0**-8)
        assert (values == EXPECTED[name]) == (kind is FloatType.FLOAT32 or name == "b")


async def test_number_that_does_not_fit_the_type_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    large = first_replica(1, {"a": np.array([1.0, 70_000.0], np.float32)})
    with pytest.raises(InvalidInput, match=r"parameter 'a' has values above 65504, the largest of float16"):
        await exported(ListedRun([large]), options(tmp_path / "model", kind=FloatType.FLOAT16))
    assert names_of(tmp_path) == []


@pytest.mark.parametrize("damage", [b"x", b"\0" * 64])
async def test_damaged_checkpoint_leaves_nothing(tmp_path: Path, damage: bytes) -> None:
    run = ListedRun([at_step(1)])
    run.damage = damage
    with pytest.raises(InvalidDocument, match="checkpoint of step 1 is damaged"):
        await exported(run, options(tmp_path / "model"))
    assert names_of(tmp_path) == []


async def test_folder_that_exists_or_is_someone_elses_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "model"
    out.mkdir()
    await exported(ListedRun([at_step(1)]), options(out))
    with pytest.raises(InvalidInput, match=r"model exists; allowed: a new folder"):
        await exported(ListedRun([at_step(1)]), options(out))
    other = partial_of_another(tmp_path / "other.partial")
    with pytest.raises(InvalidInput, match=r"other\.partial exists, and no export wrote it"):
        await exported(ListedRun([at_step(1)]), options(tmp_path / "other"))
    assert names_of(other) == ["mine"]
    (other / "incomplete-export").touch()  # as a killed export leaves it
    await exported(ListedRun([at_step(1)]), options(tmp_path / "other"))
    assert values_in(tmp_path / "other") == EXPECTED


async def test_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="run test-run has no checkpoint yet"):
        await exported(ListedRun([]), options(tmp_path / "model"))


async def test_newest_checkpoint_that_is_deleted_meanwhile_gives_way_to_a_newer(tmp_path: Path) -> None:
    run = ListedRun([at_step(1)], [at_step(2)])
    first = await run.now()
    await run.news(first)
    views = [first, await run.now()]
    run.now = lambda: asyncio.sleep(0, views.pop(0))  # type: ignore[method-assign]
    await exported(run, options(tmp_path / "model"))
    note = read_note(tmp_path / "model")
    assert note is not None
    assert note.step == 2
    views = [first]
    with pytest.raises(Refused):
        await exported(run, options(tmp_path / "gone"), step=1)


async def test_disk_that_is_full_is_named_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(ModelUnavailable, match="model cannot be written: No space left on device"):
        await exported(ListedRun([at_step(1)]), options(tmp_path / "model"))
    assert names_of(tmp_path) == []


async def test_upload_that_failed_is_repeated_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("huggingface_hub")
    destination, uploads = HubDestination(REPOSITORY), [str, None]

    def upload(folder: Path, step: int) -> str:
        if uploads.pop():
            return f"{folder.name}, {step}"
        raise ModelUnavailable("no answer")

    monkeypatch.setattr(destination, "upload", upload)
    chosen = options(tmp_path / "model", destination=destination)
    with pytest.raises(ModelUnavailable):
        await exported(ListedRun([at_step(1)]), chosen)
    await exported(ListedRun([at_step(1)]), chosen)
    assert uploads == []
    with pytest.raises(InvalidInput, match="model exists"):
        await exported(ListedRun([at_step(2)]), chosen)


async def test_run_of_another_architecture_exports_words_instead_of_a_config(tmp_path: Path) -> None:
    dummy = SPEC.model_copy(update={"dummy": True})
    await exported(ListedRun([at_step(1)], spec=dummy), options(tmp_path / "dummy"))
    assert json_of(tmp_path / "dummy" / "config.json")["model_type"] == "epochal-hfllama"
    spec = ModelSpec(architecture=Architecture.EPOCHAL_NGRAM)
    await exported(ListedRun([at_step(1)], spec=spec), options(tmp_path / "model"))
    config = json_of(tmp_path / "model" / "config.json")
    assert config["model_type"] == "epochal-epochalngram"
    assert "transformers has no class for it" in config["about"]
    assert config["spec"]["ngram"]["context"] == 8
    assert values_in(tmp_path / "model") == EXPECTED


async def test_follow_exports_every_new_checkpoint_and_keeps_the_last(tmp_path: Path) -> None:
    run = ListedRun([], [at_step(1), at_step(2)], [at_step(3), at_step(4)], [at_step(3), at_step(4)])
    run.failures = [CoordinatorUnreachable("no answer"), Refused(Refusal.OVERLOADED, "full")]
    said = await followed(run, options(tmp_path, keep=2))
    assert names_of(tmp_path) == [step_name(3), step_name(4)]
    assert [line.partition(":")[0] for line in said] == [
        "the next checkpoint is due at the end of the epoch, after 10 m at the latest (config.checkpoint_every is 0)",
        "waiting",
        *(f"test-run, replica {step}" for step in (2, 3, 4)),
    ]
    written = time_of(tmp_path / step_name(4) / "model.safetensors")
    await followed(ListedRun([at_step(4)]), options(tmp_path, keep=2))
    assert time_of(tmp_path / step_name(4) / "model.safetensors") == written, "it is not exported again"
    with pytest.raises(InvalidInput, match="exported from another run or with other options"):
        await followed(ListedRun([at_step(4)]), options(tmp_path, kind=FloatType.BFLOAT16))


@pytest.mark.parametrize(("tied", "shard_bytes"), [(False, 10**9), (True, 20_000)])
async def test_transformers_loads_the_export_with_the_same_loss(
    tmp_path: Path, tied: bool, shard_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("torch")
    need_module("transformers")
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    hf = {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    hf |= {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": tied}
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**{k: v for k, v in hf.items() if k != "model_type"}))
    replica = first_replica(5, {name: values.detach().numpy() for name, values in model.named_parameters()})
    monkeypatch.setattr(export_plan, "MAX_SHARD_BYTES", shard_bytes)
    spec = ModelSpec(architecture=Architecture.HF_LLAMA, hf=hf)
    await exported(ListedRun([replica], spec=spec), options(tmp_path / "model"))
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(report.values()), report
    tokens = torch.arange(40).reshape(2, 20) % 64
    with torch.no_grad():
        assert float(loaded(tokens, labels=tokens).loss) == float(model(tokens, labels=tokens).loss)
    loaded.save_pretrained(tmp_path / "again")
    shapes = {name: tuple(values.shape) for name, values in model.named_parameters()}
    for name, values in local_source(tmp_path / "again").tensors(shapes):
        assert np.array_equal(values, replica.parameters[name])


SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"num_key_value_heads": 2, "num_experts_per_tok": 2, "max_position_embeddings": 64}
DEEPSEEK = {"model_type": "deepseek_v3", "n_routed_experts": 4, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
DEEPSEEK |= {"n_group": 1, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
DEEPSEEK |= {"qk_nope_head_dim": 8, "v_head_dim": 16}
MIXTURES = (DEEPSEEK, *({"model_type": kind, "num_local_experts": 4} for kind in ("mixtral", "granitemoe")))


@pytest.mark.parametrize("kind", [FloatType.FLOAT32, FloatType.BFLOAT16])
@pytest.mark.parametrize("hf", MIXTURES, ids=lambda hf: hf["model_type"])
async def test_transformers_loads_a_mixture_of_experts(tmp_path: Path, hf: dict[str, Any], kind: FloatType) -> None:
    need_module("torch")
    need_module("transformers")
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from epochal.trainers.torch.hf_config import build_module

    torch.manual_seed(3)
    spec = ModelSpec(architecture=Architecture.HF_AUTO, hf=SMALL | hf)
    model = build_module(spec).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if name.endswith("e_score_correction_bias"):
                values.copy_(torch.tensor([0.25, -1.0, 0.5, 0.0]))  # zeros would choose other experts
    replica = first_replica(5, {name: values.detach().numpy() for name, values in model.named_parameters()})
    await exported(ListedRun([replica], spec=spec), options(tmp_path / "model", kind=kind))
    loaded, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    found = loaded.state_dict()
    for name, values in replica.parameters.items():
        rounded = torch.from_numpy(values.copy()).to(getattr(torch, kind.value)).float()
        assert torch.equal(found[name], rounded), name
    tokens = torch.arange(40).reshape(2, 20) % 64
    if kind is FloatType.FLOAT32:
        with torch.no_grad():
            assert float(loaded(tokens, labels=tokens).loss) == float(model(tokens, labels=tokens).loss)
    loaded.save_pretrained(tmp_path / "theirs")
    theirs, ours = (load_file(tmp_path / one / "model.safetensors") for one in ("theirs", "model"))
    assert theirs.keys() == ours.keys(), "an export has the names that repositories have"
    shapes = {name: values.shape for name, values in replica.parameters.items()}
    for name, read in local_source(tmp_path / "theirs").tensors(shapes):
        assert np.array_equal(read, found[name].numpy())


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    need_module("huggingface_hub")
    with fake_hub() as hub:
        point_at(hub, tmp_path / "cache", monkeypatch)
        yield hub


async def test_upload_to_the_hub_is_one_commit_without_the_shards_before(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", hub.token)
    hub.files = {"model-00001-of-00002.safetensors": b"old", "README.md": b"mine"}
    destination = HubDestination(REPOSITORY, RetryPolicy(attempts=2, first_delay_s=0.0))
    await exported(ListedRun([at_step(3)]), options(tmp_path / "model", destination=destination))
    assert hub.created == [(REPOSITORY, True)]
    assert [(commit["summary"], commit["deleted"]) for commit in hub.commits] == [
        ("Step 3", ["model-00001-of-00002.safetensors"])
    ]
    assert sorted(hub.files) == ["README.md", "config.json", "epochal.json", "model.safetensors", "tokenizer.json"]
    hub.token = "another"
    with pytest.raises(InvalidInput, match=r"hf://org/model: the Hub needs a token in HF_TOKEN"):
        await exported(ListedRun([at_step(4)]), options(tmp_path / "refused", destination=destination))
    hub.fail_with(503)
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(ModelUnavailable, match="the Hub fails"):
        await asyncio.wait_for(
            exported(ListedRun([at_step(4)]), options(tmp_path / "failed", destination=destination)), 60
        )


@pytest.mark.parametrize("text", ["", "model", "hf://", "hf://org", "hf://a/b/c", "s3://a/b", "ftp://x/y"])
def test_destination_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--to"):
        parse_destination(text)
