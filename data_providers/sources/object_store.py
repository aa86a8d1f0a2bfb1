"""Token files in a bucket of Google Cloud Storage, Amazon S3 (or what speaks its protocol) or Azure, through obstore.

obstore is an extra (`pip install 'epochal[object-stores]'`). It signs, retries and times out; credentials are those
that its stores find in the environment, and where there are none, requests go out unsigned, as public buckets want.
The rule kept here: `filter_directory` is a folder, not a prefix of names; a file must keep its ETag while it is read.
obstore has no type of its own for every refusal (a listing's, say): the HTTP status is read from the message.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from data_providers.file_names import is_hidden
from data_providers.protocol import CorruptData, Rejected, SourceUnavailable
from data_providers.sources.protocol import SourceFile
from state.config.data_location import S3, Azure, Gcp
from state.errors import InvalidInput

MAX_LISTED_FILES = 100_000
REQUEST_TIMEOUT = "30s"
CONNECT_TIMEOUT = "10s"
MAX_RETRIES = 3
EXTRA = "pip install 'epochal[object-stores]'"
SKIP_SIGNATURE = {"S3": "AWS_SKIP_SIGNATURE", "Gcp": "GOOGLE_SKIP_SIGNATURE", "Azure": "AZURE_SKIP_SIGNATURE"}
"""With one of these set, obstore alone decides: "false" on a machine that has a role and no variables, say."""
_CREDENTIALS = {
    "S3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ),
    "Gcp": (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
    ),
    "Azure": (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_MASTER_KEY",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_TOKEN",
        "AZURE_CLIENT_ID",
        "AZURE_STORAGE_CLIENT_ID",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_IDENTITY_ENDPOINT",
        "AZURE_MSI_ENDPOINT",
        "AZURE_USE_AZURE_CLI",
    ),
}
_ALLOW_HTTP = {"S3": "AWS_ALLOW_HTTP", "Gcp": "GOOGLE_ALLOW_HTTP", "Azure": "AZURE_ALLOW_HTTP"}
"""obstore reads these too, but forgets them when it is given timeouts."""
_BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_STATUS = re.compile(r"status code: (?P<status>[0-9]{3})\b")
_PASSING_STATUS = (408, 425, 429)
_HOPELESS = ("non-partial response when range requested", "incorrectly configured region")
_GCLOUD_CREDENTIALS = Path("~/.config/gcloud/application_default_credentials.json")

Bucket = Gcp | S3 | Azure


@dataclass(frozen=True, slots=True)
class _Stored:
    """A listed object: its path in the bucket, and what was listed of it."""

    path: str
    listed: SourceFile


class ObjectStoreSource:
    """A `ByteSource` over the objects in one folder of a bucket. Make one with `open`."""

    def __init__(self, store: Any, location: str, objects: Sequence[_Stored]) -> None:
        self._store = store
        self._location = location
        self._by_name = {stored.listed.name: stored for stored in objects}

    @classmethod
    async def open(cls, bucket: Bucket) -> Self:
        """The objects of `filter_directory`, folders below it included.

        Raises:
            SourceUnavailable: the store does not answer now; retry.
            Rejected: it refuses, or there are more than `MAX_LISTED_FILES`.
            InvalidInput: obstore is not installed, or the location's values are none for it; the user's fault.
        """
        name = getattr(bucket, "bucket_name", None)
        if name is not None and not _BUCKET_NAME.fullmatch(name):  # obstore panics at some of these
            raise InvalidInput(f"{location_of(bucket)}: {name!r} is no name of a bucket", location=location_of(bucket))
        return await cls.over(_store_of(bucket), location_of(bucket), bucket.filter_directory)

    @classmethod
    async def over(cls, store: Any, location: str, folder: str) -> Self:
        """As `open`, over any store of obstore's."""
        obstore = _obstore()
        prefix = folder.strip("/")
        objects: list[_Stored] = []
        try:
            async for chunk in obstore.list(store, prefix=prefix or None):
                for meta in chunk:
                    name = meta["path"][len(prefix) :].lstrip("/")
                    place = f"{location.rstrip('/')}/{name}"
                    if name and not is_hidden(name):  # an empty object may stand for the folder itself
                        objects.append(_Stored(meta["path"], SourceFile(name, meta["size"], place, _version_of(meta))))
                if len(objects) > MAX_LISTED_FILES:
                    raise Rejected(f"{location} holds more than {MAX_LISTED_FILES} objects", location=location)
        except _failures() as error:
            raise _as_ours(error, location) from error
        except ValueError as error:
            raise InvalidInput(f"{location} is no folder of a bucket: {error}", location=location) from error
        return cls(store, location, objects)

    @property
    def location(self) -> str:
        return self._location

    @property
    def files(self) -> Sequence[SourceFile]:
        return [stored.listed for stored in self._by_name.values()]

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """As `ByteSource.read_into`."""
        stored, stop = self._by_name[name], start + len(into)
        if start == stop:
            return
        try:
            answer = await _obstore().get_async(self._store, stored.path, options={"range": (start, stop)})
            meta = answer.meta
            version = _version_of(meta)
            if (meta["size"], version) != (stored.listed.size_bytes, stored.listed.version):
                raise CorruptData(
                    f"{stored.listed.place} changed: it had {stored.listed.size_bytes} bytes and version "
                    f"{stored.listed.version}, and now has {meta['size']} and {version}",
                    place=stored.listed.place,
                )
            body = memoryview(await answer.bytes_async())
        except _failures() as error:
            raise _as_ours(error, stored.listed.place) from error
        if len(body) != stop - start:
            raise SourceUnavailable(f"{stored.listed.place} sent {len(body)} bytes for [{start}, {stop})")
        into[:] = body

    async def aclose(self) -> None:
        """obstore keeps nothing that must be closed."""


def location_of(bucket: Bucket) -> str:
    """The bucket and folder as people write them."""
    scheme, name = {
        "Gcp": ("gs", getattr(bucket, "bucket_name", "")),
        "S3": ("s3", getattr(bucket, "bucket_name", "")),
        "Azure": ("az", f"{getattr(bucket, 'account_name', '')}/{getattr(bucket, 'container_name', '')}"),
    }[bucket.variant]
    folder = bucket.filter_directory.strip("/")
    return f"{scheme}://{name}/{folder}" if folder else f"{scheme}://{name}"


def _version_of(meta: Any) -> str:
    """Return a value that changes with an object's content: its ETag, or the second in which it was written.

    Azure's listing has no quotes around an ETag and its answers do; some listings count milliseconds, no answer does.
    """
    if meta["e_tag"]:
        return str(meta["e_tag"]).removeprefix("W/").strip('"')
    return str(meta["last_modified"].replace(microsecond=0))


def _obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise InvalidInput(f"data in a bucket needs obstore: {EXTRA}") from error
    return obstore


def _failures() -> tuple[type[Exception], ...]:
    exceptions = _obstore().exceptions
    return (exceptions.BaseError, FileNotFoundError, PermissionError, TimeoutError, OSError)


def _as_ours(error: Exception, place: str) -> SourceUnavailable | Rejected | CorruptData:
    exceptions = _obstore().exceptions
    reason = str(error).partition("\n")[0]
    if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
        return Rejected(f"{place} does not exist: {reason}", place=place)
    refused = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)
    if isinstance(error, refused):
        return Rejected(f"{place} is refused to this machine: {reason}", place=place)
    found = _STATUS.search(str(error))
    status = int(found["status"]) if found else 0
    if status in (401, 403):
        return Rejected(f"{place} is refused to this machine: {reason}", place=place)
    if status == 416:
        return CorruptData(f"{place} changed: it is shorter than it was listed: {reason}", place=place)
    if 400 <= status < 500 and status not in _PASSING_STATUS:
        return Rejected(f"{place} is not there, or not to be read like this: {reason}", place=place)
    if isinstance(error, exceptions.InvalidPathError | exceptions.NotSupportedError) or any(
        part in reason for part in _HOPELESS
    ):
        return Rejected(f"{place} cannot be asked: {reason}", place=place)
    return SourceUnavailable(f"{place} cannot be read: {reason}", place=place)


def _store_of(bucket: Bucket) -> Any:
    stores = _obstore().store
    client_options: dict[str, Any] = {"timeout": REQUEST_TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
    options: dict[str, Any] = {"retry_config": {"max_retries": MAX_RETRIES}}
    if _is_anonymous(bucket.variant):
        options["skip_signature"] = True
    endpoint = getattr(bucket, "endpoint", None)
    if endpoint is not None:
        options["endpoint"] = endpoint
        client_options["allow_http"] = endpoint.startswith("http://")
    elif os.environ.get(_ALLOW_HTTP[bucket.variant], "").lower() == "true":
        client_options["allow_http"] = True
    options["client_options"] = client_options
    try:
        if isinstance(bucket, S3):
            region = (
                bucket.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
            )
            return stores.S3Store(bucket.bucket_name, region=region, **options)
        if isinstance(bucket, Azure):
            return stores.AzureStore(container_name=bucket.container_name, account_name=bucket.account_name, **options)
        return stores.GCSStore(bucket.bucket_name, **options)
    except (_obstore().exceptions.BaseError, ValueError, TypeError) as error:
        raise InvalidInput(f"{location_of(bucket)}: {str(error).partition(chr(10))[0]}") from error


def _is_anonymous(kind: str) -> bool:
    if SKIP_SIGNATURE[kind] in os.environ or any(os.environ.get(name) for name in _CREDENTIALS[kind]):
        return False
    return kind != "Gcp" or not _GCLOUD_CREDENTIALS.expanduser().exists()
