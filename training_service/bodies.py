"""Request bodies with a bound."""

from starlette.requests import ClientDisconnect, Request

from state.errors import Refused


async def read_body(request: Request, most: int) -> bytes:
    """The request's body, of at most `most` bytes. Raises `Refused`: `too-large`, `invalid-body`."""
    held = bytearray()
    try:
        async for piece in request.stream():
            held += piece
            if len(held) > most:
                raise Refused("too-large", f"a body of more than {most} bytes")
    except ClientDisconnect as error:
        raise Refused("invalid-body", "the body broke off") from error
    return bytes(held)
