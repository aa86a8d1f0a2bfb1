"""Instructions for joining a run: the trainer, the extras, the data, and the disk space that a client needs.

All of it follows from the run's state file and the layout of its model, so that every reader gets the same.
"""

from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.config.data_location import (
    S3,
    Azure,
    DataLocation,
    DummyData,
    Gcp,
    Http,
    Local,
    Preprocessed,
    Server,
    SingleUrl,
    WeightedHttp,
)
from epochal.state.config.model_table import HF_ARCHITECTURES, TRAINER, Architecture, Hub, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Count
from epochal.state.model.tensors import TensorLayout
from epochal.state.replays.inner_states import moments_bytes
from epochal.state.shown.spool_room import spool_bytes
from epochal.state.wire import Sha256
from epochal.state.wire_document import WireDocument

MAX_SHOWN_PLACES = 4
"""Maximum number of the data's places that a guide names."""
FLOAT32_BYTES = 4
OBJECT_STORES, PARQUET, HUB, TORCH, ADAPTERS = "object-stores", "parquet", "hub", "torch", "adapters"
"""Extras of the package."""
CERTIFICATE_FILE = "cert.pem"
"""The coordinator's own certificate in commands for others, as in the tutorials."""

AccessMode = Literal["open", "keys", "invitations"]
DataKind = Literal["made up", "server", "http", "bucket", "files", "rows", "mixture"]
"""Made-up tokens; TCP data servers; token files at URLs, in a bucket, or on the client's own machine; parquet or Arrow
files of samples; several locations with weights."""


@dataclass(frozen=True, slots=True)
class JoinData(WireDocument):
    """The places of the run's data.

    Attributes:
        kind: of the location.
        places: the first `MAX_SHOWN_PLACES` places: host:port, a URL, a bucket or a path.
        place_count: number of all of them.
        own: whether each machine needs its own copy, which it names with `--data`.
        loopback: whether a place can only be reached from the machine that it is on.
        insecure: whether a client on another machine needs `--insecure`, because a data server has no TLS.
    """

    kind: DataKind
    places: tuple[str, ...]
    place_count: Count
    own: bool
    loopback: bool
    insecure: bool


@dataclass(frozen=True, slots=True)
class JoinRoom(WireDocument):
    """The room that a client needs, computed from the model's layout.

    Attributes:
        parameter_count: number of the model's parameters.
        trainer_bytes: memory for parameters, gradients and the optimizer, without activations.
        spool_bytes: disk for temporary files and the inner states that are revealed.
        download_bytes: size of the checkpoint that a newcomer downloads.
        result_bytes: size of what a client uploads in each round, without a header of a few KiB.
        update_bytes: size of what it downloads in each round, likewise.
        base_bytes: size of the files of an adapter's base, which take as much memory unless they are quantised.
    """

    parameter_count: Count
    trainer_bytes: Count
    spool_bytes: Count
    download_bytes: Count
    result_bytes: Count
    update_bytes: Count
    base_bytes: Count = 0


@dataclass(frozen=True, slots=True)
class JoinGuide(WireDocument):
    """Instructions for joining the run (`GET …/join`).

    Attributes:
        version: of the coordinator's program.
        access: anyone may join, the owners of known keys, or who has an invitation.
        trainer: the value of `--trainer`.
        packaged: whether the trainer is of another package, which the machine must have.
        extras: the extras of this package that the machine needs.
        task_encoder: the entry point of the task encoder, whose package the machine must have; None if it is missing.
        spool_limit_bytes: maximum size of a client's temporary files, as the state file has it; None for no limit.
        room: None before the run's first checkpoint.
        own_base: whether each machine needs a copy of an adapter's base of its own, which it names with `--base`.
        own_certificate: SHA-256 of the coordinator's certificate if it is its own authority: each machine needs a copy,
            which every command names with `--tls-ca`. None for a certificate of another authority, and without TLS.
    """

    run_id: str
    version: Annotated[str, Field(max_length=64)]
    access: AccessMode
    trainer: str
    packaged: bool
    extras: tuple[str, ...]
    task_encoder: str | None
    data: JoinData
    spool_limit_bytes: Count | None
    room: JoinRoom | None
    own_base: bool = False
    own_certificate: Sha256 | None = None


def trainer_named(spec: ModelSpec) -> str:
    """Return the name of the trainer that computes a model on the client's own machine."""
    if spec.dummy:
        return "null"
    if spec.architecture is Architecture.CUSTOM:
        return str((spec.custom or {}).get(TRAINER, ""))
    return TORCH if spec.architecture in HF_ARCHITECTURES else "numpy"


def data_of(location: DataLocation) -> tuple[JoinData, tuple[str, ...]]:
    """Return where a run's data are, and the extras that reading them needs."""
    if isinstance(location, DummyData):
        return _data("made up"), ()
    if isinstance(location, Server):
        places = location.root.rpartition("://")[2].split(",")
        loopback = any(_is_loopback(host) for host, _ in location.addresses)
        return _data("server", *places, loopback=loopback, insecure=not location.tls and not loopback), ()
    if isinstance(location, Local):
        return _data("files", location.path, own=True), ()
    if isinstance(location, Preprocessed):
        extras = (PARQUET, *_store_extras(location.path))
        return _data(
            "rows", location.path, own="://" not in location.path, loopback=_at_loopback(location.path)
        ), extras
    if isinstance(location, WeightedHttp):
        return _data(
            "mixture", location.place, own="://" not in location.place, loopback=_at_loopback(location.place)
        ), ()
    return _token_files(location)


def _token_files(location: Http) -> tuple[JoinData, tuple[str, ...]]:
    held = location.location
    if isinstance(held, Gcp):
        return _data("bucket", f"gs://{held.bucket_name}/{held.filter_directory}"), (OBJECT_STORES,)
    if isinstance(held, S3):
        loopback = held.endpoint is not None and _at_loopback(held.endpoint)
        place = f"s3://{held.bucket_name}/{held.filter_directory}"
        return _data("bucket", place, *([held.endpoint] if held.endpoint else []), loopback=loopback), (OBJECT_STORES,)
    if isinstance(held, Azure):
        place = f"az://{held.account_name}/{held.container_name}/{held.filter_directory}"
        loopback = held.endpoint is not None and _at_loopback(held.endpoint)
        return _data("bucket", place, *([held.endpoint] if held.endpoint else []), loopback=loopback), (OBJECT_STORES,)
    urls = (held.url,) if isinstance(held, SingleUrl) else held.urls
    return _data("http", *urls, loopback=any(_at_loopback(url) for url in urls)), ()


def _data(kind: DataKind, *places: str, own: bool = False, loopback: bool = False, insecure: bool = False) -> JoinData:
    shown = tuple(_without_password(place) for place in places[:MAX_SHOWN_PLACES])
    return JoinData(kind, shown, len(places), own, loopback, insecure)


def _without_password(place: str) -> str:
    scheme, separator, rest = place.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}" if separator else place


def _store_extras(place: str) -> tuple[str, ...]:
    scheme = place.partition("://")[0]
    return {"s3": (OBJECT_STORES,), "gs": (OBJECT_STORES,), "az": (OBJECT_STORES,), "hf": (HUB,)}.get(scheme, ())


def _at_loopback(place: str) -> bool:
    return "://" in place and _is_loopback(urlsplit(place).hostname or "")


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def room_of(state_file: StateFile, layout: TensorLayout, checkpoint_bytes: int, base_bytes: int = 0) -> JoinRoom:
    """Return the room that a client needs (`docs/operations.md`, "What a client holds").

    Args:
        state_file: of the run.
        layout: of the model's parameters.
        checkpoint_bytes: size of the newest checkpoint.
        base_bytes: size of the files of an adapter's base; 0 without one.
    """
    merge = state_file.merge
    return JoinRoom(
        parameter_count=layout.size_bytes // FLOAT32_BYTES,
        trainer_bytes=2 * layout.size_bytes + moments_bytes(layout, state_file.model.LLM.optimizer),
        spool_bytes=spool_bytes(layout, state_file),
        download_bytes=checkpoint_bytes,
        result_bytes=codec_named(merge.codec_name).encoded(layout).size_bytes,
        update_bytes=codec_named(merge.update_codec).encoded(layout).size_bytes,
        base_bytes=base_bytes,
    )


def join_guide(
    state_file: StateFile, version: str, room: JoinRoom | None, own_certificate: Sha256 | None = None
) -> JoinGuide:
    """Return how a machine joins the run that a state file describes.

    Args:
        state_file: of the run.
        version: of the coordinator's program.
        room: as `room_of` returns it; None while the model's layout is not known.
        own_certificate: SHA-256 of the coordinator's, if only those trust it who have it.
    """
    spec = state_file.model.LLM.spec
    data, extras = data_of(state_file.model.LLM.data_location)
    trainer = trainer_named(spec)
    return JoinGuide(
        run_id=state_file.run_id,
        version=version,
        access=state_file.access.mode,
        trainer=trainer,
        packaged=spec.architecture is Architecture.CUSTOM and not spec.dummy,
        extras=(*((TORCH if spec.adapter is None else ADAPTERS,) if trainer == TORCH else ()), *extras),
        task_encoder=state_file.packing.task_encoder,
        data=data,
        spool_limit_bytes=state_file.client.spool_bytes,
        room=room,
        own_base=spec.adapter is not None and not isinstance(state_file.model.LLM.checkpoint, Hub),
        own_certificate=own_certificate,
    )


def shown_fingerprint(sha256: Sha256) -> str:
    """Return the SHA-256 of a certificate as `openssl x509 -noout -fingerprint -sha256` prints it."""
    return bytes.fromhex(sha256).hex(":").upper()
