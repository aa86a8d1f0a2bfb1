"""Buckets of Google Cloud Storage, Amazon S3 (or a compatible server) and Azure as stores of obstore, and their errors.

obstore is an extra (`pip install 'epochal[object-stores]'`). It signs, retries and times out. Its stores find
credentials in the environment; without any, requests are unsigned, as public buckets need them. The rule kept here: for
a bucket that somebody else named, no credentials are used unless the machine's owner lends them to its host, and
none go over plain http.
obstore does not have an error type for every refusal (of a listing, say): the HTTP status is read from the message.
"""

import os
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from epochal.runtime.permissions import OWNERS, Permissions
from epochal.state.config.data_location import S3, Azure, Gcp
from epochal.state.errors import ExtraMissing, InvalidInput

REQUEST_TIMEOUT = "30s"
CONNECT_TIMEOUT = "10s"
MAX_RETRIES = 3
EXTRA = "pip install 'epochal[object-stores]'"
SKIP_SIGNATURE = {"S3": "AWS_SKIP_SIGNATURE", "Gcp": "GOOGLE_SKIP_SIGNATURE", "Azure": "AZURE_SKIP_SIGNATURE"}
"""If the variable is set, obstore decides: "false" on a machine that has a role and no variables, for example."""
CREDENTIALS = {
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
"""The environment's variables that hold credentials: if one of them is set, requests are signed."""
_ALLOW_HTTP = {"S3": "AWS_ALLOW_HTTP", "Gcp": "GOOGLE_ALLOW_HTTP", "Azure": "AZURE_ALLOW_HTTP"}
"""obstore reads these too, but ignores them if timeouts are set."""
_STATUS = re.compile(r"status code: (?P<status>[0-9]{3})\b")
_GCLOUD_CREDENTIALS = Path("~/.config/gcloud/application_default_credentials.json")

Bucket = Gcp | S3 | Azure


def location_of(bucket: Bucket) -> str:
    """Return the URL of the bucket's folder."""
    if isinstance(bucket, Azure):
        name = f"az://{bucket.account_name}/{bucket.container_name}"
    else:
        name = f"{'s3' if isinstance(bucket, S3) else 'gs'}://{bucket.bucket_name}"
    folder = bucket.filter_directory.strip("/")
    return f"{name}/{folder}" if folder else name


def endpoint_of(bucket: Bucket) -> str | None:
    """Return the URL of the bucket's server, where it is named."""
    return None if isinstance(bucket, Gcp) else bucket.endpoint


def host_of(bucket: Bucket) -> str:
    """Return the host that `--credentials-for` names to let requests to this bucket be signed."""
    endpoint = endpoint_of(bucket)
    if endpoint is not None:
        return urlsplit(endpoint).hostname or ""
    if isinstance(bucket, Azure):
        return f"{bucket.account_name}.blob.core.windows.net".lower()
    return "s3.amazonaws.com" if isinstance(bucket, S3) else "storage.googleapis.com"


def obstore() -> Any:
    """Import and return obstore. Raise `InvalidInput`, which names the package to install, if it is missing."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise ExtraMissing(f"a bucket needs obstore: {EXTRA}") from error
    return obstore


def store_failures() -> tuple[type[Exception], ...]:
    """Return the errors that a request to a store may raise."""
    return (obstore().exceptions.BaseError, OSError)


def status_of(error: Exception) -> int:
    """Return the HTTP status of the answer that caused an error; 0 if unknown."""
    found = _STATUS.search(str(error))
    return int(found["status"]) if found else 0


def version_of(meta: Any) -> str:
    """Return a value that changes with an object's content: its ETag, or the second in which it was written.

    Azure's answers quote an ETag and its listings do not; some listings have milliseconds, answers do not.
    """
    if meta["e_tag"]:
        return tag_of(meta["e_tag"])
    return str(meta["last_modified"].replace(microsecond=0))


def tag_of(e_tag: str) -> str:
    """Return an ETag as `version_of` does."""
    return e_tag.removeprefix("W/").strip('"')


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Options for requests to a bucket.

    Attributes:
        permissions: those of the document that names the bucket.
        proxy_url: asks it by way of this proxy; None for the environment's, if there is one.
        timeout: maximum time for one request and its answer.
        repeated_for_s: seconds after which a request is not repeated any more; None for obstore's own bound.
    """

    permissions: Permissions = OWNERS
    proxy_url: str | None = None
    timeout: str = REQUEST_TIMEOUT
    repeated_for_s: float | None = None

    def signs(self, bucket: Bucket) -> bool:
        """Whether requests to a bucket are signed with the machine's credentials."""
        is_plain = (endpoint_of(bucket) or "").startswith("http://")
        if self.permissions.credential_hosts is not None and is_plain:
            return False
        return self.permissions.lends_credentials(host_of(bucket)) and not is_anonymous(bucket.variant)


def store_of(bucket: Bucket, access: StoreAccess) -> Any:
    """Return a bucket as a store of obstore. No request is made.

    Raises:
        InvalidInput: obstore is not installed, or does not accept the location's values; the user's fault.
    """
    stores = obstore().store
    client_options: dict[str, Any] = {"timeout": access.timeout, "connect_timeout": CONNECT_TIMEOUT}
    if access.proxy_url is not None:
        client_options["proxy_url"] = access.proxy_url
    retries: dict[str, Any] = {"max_retries": MAX_RETRIES}
    if access.repeated_for_s is not None:
        retries["retry_timeout"] = timedelta(seconds=access.repeated_for_s)
    options: dict[str, Any] = {"retry_config": retries}
    if not access.signs(bucket):
        options["skip_signature"] = True
    endpoint = endpoint_of(bucket)
    if endpoint is not None:
        options["endpoint"] = endpoint
        client_options["allow_http"] = endpoint.startswith("http://")
    elif os.environ.get(_ALLOW_HTTP[bucket.variant], "").lower() == "true":
        client_options["allow_http"] = True
    options["client_options"] = client_options
    try:
        if isinstance(bucket, S3):
            environment = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            region = bucket.region or environment or "us-east-1"
            return stores.S3Store(bucket.bucket_name, region=region, **options)
        if isinstance(bucket, Azure):
            return stores.AzureStore(container_name=bucket.container_name, account_name=bucket.account_name, **options)
        return stores.GCSStore(bucket.bucket_name, **options)
    except (obstore().exceptions.BaseError, ValueError, TypeError) as error:
        raise InvalidInput(f"{location_of(bucket)}: {str(error).partition(chr(10))[0]}") from error


def is_anonymous(kind: str) -> bool:
    """Return whether requests to this kind of bucket are not signed, because the environment has no credentials."""
    if SKIP_SIGNATURE[kind] in os.environ or any(os.environ.get(name) for name in CREDENTIALS[kind]):
        return False
    return kind != "Gcp" or not _GCLOUD_CREDENTIALS.expanduser().exists()
