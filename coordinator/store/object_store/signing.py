"""Signed requests to Amazon S3 or a compatible server that bind a blob's length and digest: Signature Version 4.

Source: "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)" of Amazon's S3 API reference, and
"Checking object integrity" there for `x-amz-checksum-sha256`. obstore signs no header but `host`; so its URL is taken
apart and signed anew, where the secret that it used is in the environment.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

from epochal.coordinator.store.blobs import SignedPut
from epochal.state.wire import Sha256

_ALGORITHM = "AWS4-HMAC-SHA256"
_UNSIGNED = "UNSIGNED-PAYLOAD"


def bound_put(
    url: str, environment: Mapping[str, str], sha256: Sha256, size_bytes: int, expires_in_s: float
) -> SignedPut | None:
    """Return a PUT of exactly these bytes; None unless the URL was signed with a key in the environment.

    Args:
        url: of a PUT to the same place, as obstore signs it.
        environment: may hold `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`.
        sha256: the digest to bind.
        size_bytes: the length to bind.
        expires_in_s: seconds for which `url` is valid.
    """
    found = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    key = found.get("X-Amz-Credential", "").partition("/")[0]
    secret = environment.get("AWS_SECRET_ACCESS_KEY")
    if found.get("X-Amz-Algorithm") != _ALGORITHM or not secret or key != environment.get("AWS_ACCESS_KEY_ID"):
        return None
    headers = {
        "content-length": str(size_bytes),
        "x-amz-checksum-sha256": base64.b64encode(bytes.fromhex(sha256)).decode(),
    }
    unsigned = {name: value for name, value in found.items() if name not in ("X-Amz-Signature", "X-Amz-SignedHeaders")}
    signed = signed_url("PUT", url, unsigned, headers, secret)
    return SignedPut(signed, {name: value for name, value in headers.items() if name != "content-length"}, expires_in_s)


def signed_url(method: str, url: str, query: Mapping[str, str], headers: Mapping[str, str], secret: str) -> str:
    """Return the URL signed for requests with these headers.

    Args:
        method: of the request.
        url: its place; its query is replaced.
        query: all parameters but the signature and the names of the headers.
        headers: lower-case names with values; `host` is added.
        secret: the key that `X-Amz-Credential` names.
    """
    parts = urlsplit(url)
    named = dict(sorted({**headers, "host": parts.netloc}.items()))
    parameters = {**query, "X-Amz-SignedHeaders": ";".join(named)}
    encoded = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in sorted(parameters.items()))
    lines = "".join(f"{name}:{value}\n" for name, value in named.items())
    request = "\n".join((method, parts.path, encoded, lines, ";".join(named), _UNSIGNED))
    scope = query["X-Amz-Credential"].partition("/")[2]
    text = "\n".join((_ALGORITHM, query["X-Amz-Date"], scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return urlunsplit((parts.scheme, parts.netloc, parts.path, f"{encoded}&X-Amz-Signature={signature}", ""))


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")
