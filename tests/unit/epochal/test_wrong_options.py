"""Options and arguments that cannot be right: each command says so and exits with 2 before it starts anything."""

from pathlib import Path

import pytest

from tests.support.data.states import state_text
from tests.support.drive.cli import run_main
from tests.support.heavy import need_module

PLAN, ONE = ("plan", "state.toml", "--clients"), "1gbit 1k tokens/s"
CLIENT = ("client", "http://127.0.0.1:1", "--reconnect", "3600")
VERIFIER = ("verifier", "http://127.0.0.1:1", "--reconnect", "3600", "--token", "a.b")
RETRAIN = ("audit", "--recompute", "--retrain", "1", ".")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a current folder with a file, a state file, and one that is not supported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EPOCHAL_ADMIN_TOKEN", raising=False)
    (tmp_path / "file").touch()
    (tmp_path / "state.toml").write_text(state_text())
    (tmp_path / "unsupported.toml").write_text(state_text(model__LLM__architecture="Torchtitan"))
    (tmp_path / "hub.toml").write_text(state_text(model__LLM__checkpoint={"Hub": {"repo_id": "a/b"}}))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*CLIENT, "--trainer", "nope"), "there is no trainer 'nope'; allowed: null, numpy"),
        ((*CLIENT, "--trainer", "absent_lab:Trainer"), "'absent_lab:Trainer' cannot be imported: ModuleNotFoundError"),
        ((*CLIENT, "--mesh", "data=0"), "mesh 'data=0': 'data=0'; allowed: NAME=SIZE, as in data=2,tensor=2"),
        ((*CLIENT, "--mesh", "pipe=2"), "a mesh of the axes pipe; one must be a batch axis: data, replica, fsdp"),
        ((*CLIENT, "--data", "tcp://nowhere"), "data location 'tcp://nowhere'"),
        ((*CLIENT, "--data", "../nope.bin"), "--data ../nope.bin: there is no such file or folder (/"),
        ((*CLIENT, "--data", "nope.json"), "--data nope.json: there is no such file or folder"),
        ((*CLIENT, "--cache", "cache", "--cache-bytes", "3"), "a data cache of 3 bytes"),
        ((*CLIENT, "--key", "typo.key"), "key file typo.key does not exist; check the path, or make a key there"),
        ((*CLIENT, "--key", "typo/my.key", "--new-key"), "key file typo/my.key: there is no folder typo"),
        ((*CLIENT, "--new-key"), "--new-key goes with --key PATH"),
        ((*CLIENT, "--spool", "file/spool"), "--spool file/spool: Not a directory"),
        ((*CLIENT, "--tls-ca", "missing.pem"), "--tls-ca missing.pem: No such file or directory"),
        ((*CLIENT, "--tls-ca", __file__), f"--tls-ca {__file__}: [X509"),
        ((*CLIENT, "--upload", "10"), "--upload '10': allowed: a number and a unit (kbit, mbit or gbit)"),
        ((*CLIENT, "--download", "1kbit"), "--download '1kbit': allowed: a number and a unit"),
        ((*CLIENT, "--hours", "22-22"), "--hours '22-22': '22-22'; allowed: windows of local time, such as 22-07"),
        ((*CLIENT, "--mesh", "data=2", "--upload", "1mbit"), "--upload and --download do not go with --mesh"),
        (
            (*CLIENT, "--trainer", "numpy", "--gpu-memory", "8gb"),
            "--base, --base-precision and --assets go with --trainer torch or that of a package, not with numpy",
        ),
        ((*CLIENT, "--gpu-memory", "8"), "--gpu-memory '8': allowed: a number and mb or gb, such as 8gb, from 256mb"),
        (("invite", "http://127.0.0.1:1", "--uses", "0"), "--uses 0: allowed: 1 to 10000 clients"),
        (("invite", "http://127.0.0.1:1", "--uses", "-3"), "--uses -3: allowed: 1 to 10000 clients"),
        (("invite", "http://127.0.0.1:1", "--expires", "0d"), "--expires '0d': allowed: a number and a unit"),
        ((*PLAN, "0 x 1gbit 1k tokens/s"), "--clients '0 x 1gbit 1k tokens/s': 0 clients; allowed: 1 to 20000"),
        ((*PLAN, "1gbit 1k tokens/s 0 batches"), "--clients '1gbit 1k tokens/s 0 batches': 0 batches; allowed: 1 to"),
        ((*PLAN, "1gbit 0 tokens/s"), "--clients '1gbit 0 tokens/s': 0 tokens/s; allowed: a number above 0"),
        ((*PLAN, "0mbit 1 tokens/s"), "--clients '0mbit 1 tokens/s': a link of 0mbit; allowed: a rate above 0"),
        ((*PLAN, ONE, "--coordinator", "0mbit"), "--coordinator '0mbit': a link of 0mbit; allowed: a rate above 0"),
        ((*PLAN, ONE, "--store", "fast"), "--store 'fast' is not a link; allowed: \"1gbit/1gbit\""),
        ((*PLAN, ONE, "--parameters", "0"), "--parameters '0': not a number of parameters; allowed: 1 to 1000"),
        (("plan", "state.toml", "--clients", ""), "--clients '': it does not begin with a number of clients"),
        ((*VERIFIER, "--trainer", "null"), "--trainer null: results are trained again on this machine; allowed: numpy"),
        ((*VERIFIER, "--trainer", "remote"), "--trainer remote: results are trained again on this machine"),
        ((*RETRAIN, "--trainer", "null"), "--trainer null: results are trained again on this machine; allowed: numpy"),
        ((*RETRAIN, "--trainer", "remote"), "--trainer remote: results are trained again on this machine"),
        (("up", "--trainer", "nope"), "there is no trainer 'nope'"),
        (("up", "--run-dir", "file/run"), "--run-dir file/run cannot be used: Not a directory"),
        (("up", "--run-dir", "file"), "--run-dir file cannot be used: File exists"),
        (("coordinator", "unsupported.toml", "--store", "run"), "epochal: unsupported.toml"),
        (
            ("coordinator", "hub.toml", "--store", "run", "--seed", "7"),
            "epochal: --seed does not go with `checkpoint = { Hub = … }`: this start makes no model from a seed",
        ),
        (
            ("coordinator", "state.toml", "--store", "run", "--advertise", "coordinator:8000"),
            "--advertise URL coordinator:8000: allowed: http://host:port",
        ),
        (
            ("coordinator", "state.toml", "--store", "mysql://host/db"),
            "epochal: the store mysql://host/db cannot be opened; allowed: a folder, file:///PATH/OF/A/FOLDER, or "
            "postgresql://USER@HOST/DATABASE",
        ),
        (
            ("coordinator", "state.toml", "--store", "postgresql://user:secret@host/db"),
            "epochal: postgresql://user@host/db keeps no results and checkpoints. Name an object store",
        ),
        (
            ("coordinator", "state.toml", "--store", "postgresql://host/db?run=another"),
            "epochal: --store names run 'another', but the state file is of run",
        ),
        (
            ("coordinator", "state.toml", "--store", "run", "--blobs", "blobs"),
            "epochal: --blobs goes with a store in a database; run keeps its blobs itself",
        ),
        (("coordinator", "state.toml", "--store", "run", "--host", "0.0.0.0"), "--insecure"),
        (("coordinator", "state.toml", "--store", "run", "--tls-cert", "cert.pem"), "given together"),
        (("audit", "."), ". holds no run; allowed: a run directory such as runs/RUN_ID"),
        (("audit", ".", "--seed", "3"), "without --retrain nothing is trained: leave out --seed, or add --retrain N"),
        (("audit", ".", "--data", "nope", "--trainer", "nope"), "leave out --trainer, --data, or add --retrain N"),
        (("audit", ".", "--device", "cpu"), "leave out --device etc., or add --retrain N"),
        (("evaluate", "."), ". holds no run; allowed: a run directory such as runs/RUN_ID"),
        (("evaluate", ".", "--follow", "--step", "1"), "--follow evaluates every new checkpoint; leave --step out"),
        (("evaluate", ".", "--name", "a name"), "'a name' is no name of an evaluation; allowed as --name: 1 to 64"),
        (("evaluate", ".", "--device", "tpu"), "--device tpu; allowed: auto, cpu, mps, cuda or cuda:N"),
        (("evaluate", "http://127.0.0.1:9"), "the coordinator printed at its first start"),
        (("evaluate", ".", "--data", "nosuch.bin"), "--data nosuch.bin: there is no such file or folder (/"),
        ((*CLIENT, "--invitation", "", "--device", "gpu"), "--invitation is no code; allowed: 1 to 256 characters"),
        ((*CLIENT, "--invitation", "x" * 257), "--invitation is no code"),
        (("export", ".", "--out", "m"), ". holds no run; allowed: a run directory such as runs/RUN_ID"),
        (("export", ".", "--out", "m", "--follow", "--step", "1"), "--follow exports every new checkpoint"),
        (("export", ".", "--out", "m", "--keep", "1"), "--keep goes with --follow: it says how many"),
        (("export", ".", "--out", "m", "--to", "ftp://x"), "--to 'ftp://x' is no destination; allowed: hf://"),
        (("export", ".", "--out", "m", "--dtype", "float8"), "'float8' is not one of 'float32'"),
        (("export", "http://127.0.0.1:9", "--out", "m"), "or name the run's folder or database instead"),
        (("export", "http://127.0.0.1:9", "--out", "m", "--admin-token", "ü"), "not an admin token"),
        (("status", "http://127.0.0.1:65536"), "allowed: http://host:port"),
        (("status", "postgresql://me:secret@db/runs"), "postgresql://me:…@db/runs: this is a store; `epochal runs`"),
        (("watch", "http://127.0.0.1:9", "--to", "jsonl:"), "--to jsonl:: allowed:"),
        (("watch", "http://127.0.0.1:9", "--to", "excel:x"), "--to excel:x: allowed:"),
        (("watch", "http://127.0.0.1:9", "--to", "jsonl:nowhere/x"), "allowed: a file in a folder that exists"),
        (("backup", ".", "postgresql://me@db/runs"), "TO is a database; allowed: a new folder. `epochal move`"),
        (("pause", "http://127.0.0.1:9"), "EPOCHAL_ADMIN_TOKEN"),
        (("token", "data-server", "http://127.0.0.1:9"), "EPOCHAL_ADMIN_TOKEN"),
        (("token", "data-server", "."), ". holds no run; allowed: a run directory such as runs/RUN_ID"),
        (("data-server", "data.toml", "--coordinator", "http://127.0.0.1:9", "--token", ""), "--token is not a token"),
        (("pause", "http://127.0.0.1:9", "--admin-token", "ü"), "not an admin token"),
        (("eject", "http://127.0.0.1:9", "../../pause", "--admin-token", "t"), "'../../pause' is not a client id"),
        (("absolve", "http://127.0.0.1:9", "../../pause", "--admin-token", "t"), "'../../pause' is not a client id"),
        (("absolve", "http://127.0.0.1:9", "bcf0626e9bfb", "--admin-token", "t"), "allowed: all 32 hex digits"),
    ],
)
def test_wrong_option_is_named_and_nothing_starts(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    if "--store" in arguments:
        need_module("psycopg")
    run_main(*arguments).expect(2, message)
    assert {path.name for path in folder.iterdir()} == {"file", "state.toml", "unsupported.toml", "hub.toml"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--device", "gpu"), "--device gpu; allowed: auto, cpu, mps, cuda or cuda:N"),
        (("--device", "cuda:77"), "--device cuda:77: torch finds no such device on this machine; allowed: auto, cpu"),
        (("--precision", "fp8"), "--precision fp8; allowed: auto, bf16, float32"),
        (("--gpu-memory", "8gb", "--device", "cpu"), "--gpu-memory: torch computes on cpu here; allowed with --device"),
        (("--micro-batch", "0"), "--micro-batch 0; allowed: auto, or a number of rows from 1"),
    ],
)
def test_wrong_option_of_torch_is_named_before_a_coordinator_is_asked(options: tuple[str, ...], message: str) -> None:
    need_module("torch")
    need_module("transformers")
    run_main(*CLIENT, "--trainer", "torch", *options).expect(2, message)


def test_options_of_torch_are_refused_where_nothing_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    run_main(*CLIENT, "--trainer", "numpy", "--device", "cpu").expect(
        2, "go with --trainer torch or that of a package, not with numpy"
    )
    monkeypatch.setattr("epochal.trainers.architectures.find_spec", lambda name: None)
    run_main(*CLIENT, "--trainer", "torch").expect(2, "needs torch and transformers: pip install 'epochal[torch]'")


@pytest.mark.parametrize("token", ["", " ", "a\n", "\u00e9"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("trainer-service", "--port", "0", "--max-sessions", "1", "--tls-cert", "nowhere"),
        (*CLIENT, "--trainer", "remote", "--trainer-url", "http://127.0.0.1:9"),
    ],
)
def test_trainer_token_that_cannot_be_sent_is_refused(
    monkeypatch: pytest.MonkeyPatch, token: str, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("EPOCHAL_TRAINER_TOKEN", token)
    run_main(*arguments).expect(2, "EPOCHAL_TRAINER_TOKEN is empty or not a token")
