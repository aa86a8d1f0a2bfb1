"""`JoiningTransport`: a response's head leaves with the first piece of its body, and never waits for long."""

import asyncio

from epochal.runtime.http.joining_transport import MAX_JOINED_BYTES, JoiningTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


class Recorder(asyncio.Transport):
    """A transport that records what it is told to do."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.told.append(bytes(data))

    def close(self) -> None:
        self.told.append("close")

    def abort(self) -> None:
        self.told.append("abort")

    def get_write_buffer_size(self) -> int:
        return 0


async def test_head_leaves_with_the_first_piece_of_the_body() -> None:
    recorder = Recorder()
    transport = JoiningTransport(recorder)
    transport.write(HEAD)
    assert (recorder.told, transport.get_write_buffer_size()) == ([], len(HEAD))
    transport.write(b"body")
    transport.write(b"more")
    assert (recorder.told, transport.get_write_buffer_size()) == ([HEAD + b"body", b"more"], 0)


async def test_head_without_a_body_leaves_in_the_next_iteration_of_the_loop() -> None:
    recorder = Recorder()
    transport = JoiningTransport(recorder)
    transport.write(HEAD)
    await asyncio.sleep(0)
    assert recorder.told == [HEAD]
    transport.write(b"body")
    assert recorder.told == [HEAD, b"body"]


async def test_long_piece_is_not_copied_and_keeps_its_order() -> None:
    recorder = Recorder()
    transport = JoiningTransport(recorder)
    long = bytes(MAX_JOINED_BYTES + 1)
    transport.write(HEAD)
    transport.write(long)
    assert recorder.told == [HEAD, long]


async def test_two_heads_in_a_row_keep_their_order() -> None:
    recorder = Recorder()
    transport = JoiningTransport(recorder)
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    transport.write(interim)
    transport.write(HEAD)
    transport.write(b"body")
    assert b"".join(part for part in recorder.told if isinstance(part, bytes)) == interim + HEAD + b"body"


async def test_closing_sends_the_head_first_and_aborting_drops_it() -> None:
    closed, aborted = Recorder(), Recorder()
    for recorder in (closed, aborted):
        transport = JoiningTransport(recorder)
        transport.write(HEAD)
        if recorder is closed:
            transport.close()
        else:
            transport.abort()
    await asyncio.sleep(0)
    assert closed.told == [HEAD, "close"]
    assert aborted.told == ["abort"]
