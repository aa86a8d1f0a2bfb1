"""A small result with its commitment, as one message: a line of JSON, and the result's bytes.

It saves a request for each client and round. Larger results follow their commitment, because they are received in parts
and resumed where a connection breaks.
"""

from epochal.state.errors import InvalidDocument
from epochal.state.messages.requests import ResultCommitment
from epochal.state.wire import canonical_json, parse_document, sha256_hex

MAX_DELIVERED_BYTES = 60 * 1024
"""Maximum size of a result that comes with its commitment."""
MAX_DELIVERY_BYTES = 64 * 1024
"""Maximum size of both together."""
MEDIA_TYPE = "application/octet-stream"
_END_OF_LINE = b"\n"


def encoded_delivery(commitment: ResultCommitment, data: bytes) -> bytes:
    """Return the message with a client's commitment to its result of a round, and the result's bytes."""
    return canonical_json(commitment) + _END_OF_LINE + data


def parse_delivery(body: bytes) -> tuple[ResultCommitment, bytes]:
    """Return the commitment and the result's bytes in a message.

    Raises:
        InvalidDocument: it has another form, or the bytes are not those that the commitment names; the sender's fault.
    """
    line, end, data = body.partition(_END_OF_LINE)
    if not end:
        raise InvalidDocument("a delivery is a line of JSON, which ends with a line feed, and the result's bytes")
    commitment = parse_document(ResultCommitment, line)
    if len(data) != commitment.size_bytes:
        raise InvalidDocument(f"{len(data)} bytes follow the commitment, which names {commitment.size_bytes}")
    found = sha256_hex(data)
    if found != commitment.result_sha256:
        raise InvalidDocument(f"the bytes hash to {found}; the commitment names {commitment.result_sha256}")
    return commitment, data
