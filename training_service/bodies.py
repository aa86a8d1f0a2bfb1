"""Request bodies with a bound."""

from starlette.requests import ClientDisconnect, Request

from state.errors import Refused
from state.refusals import Refusal


async def read_body(request: Request, most: int) -> bytes:
    """The request's body, of at most `most` bytes. Raises `Refused`: `body-too-large`, `invalid-body`."""
    held = bytearray()
    try:
        async for piece in request.stream():
            held += piece
            if len(held) > most:
                raise Refused(Refusal.BODY_TOO_LARGE, f"a body of more than {most} bytes")
    except ClientDisconnect as error:
        raise Refused(Refusal.INVALID_BODY, "the body broke off") from error
    return bytes(held)
