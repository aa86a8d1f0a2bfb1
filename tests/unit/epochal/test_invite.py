"""What is printed of a new invitation: a command that joins, whole, whatever the run's data and certificate are."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.commands.operate.invite import told
from epochal.state.messages.access_commands import MadeInvitation
from epochal.state.shown.join_guide import JoinData, JoinGuide
from epochal.state.wire import Sha256
from tests.support.deployment import parsed_command

DATA = JoinData("server", ("127.0.0.1:39405",), 1, own=False, loopback=True, insecure=False)
GUIDE = JoinGuide("run", "0.1", "invitations", "torch", False, (), None, DATA, None, None)
URL = "https://a.example:8000"
MADE = MadeInvitation(Sha256("0f" * 32), "code-1", 2, None)
OWN = Sha256("ab" * 32)
COMMAND = f"epochal client {URL} --key me.key --new-key"


@pytest.mark.parametrize(
    ("guide", "tls_ca", "rest"),
    [
        (GUIDE, None, "--trainer torch --invitation code-1"),
        (GUIDE, Path("there/cert.pem"), "--tls-ca cert.pem --trainer torch --invitation code-1"),
        (replace(GUIDE, own_certificate=OWN), None, "--tls-ca cert.pem --trainer torch --invitation code-1"),
        (replace(GUIDE, own_certificate=OWN), Path("it.pem"), "--tls-ca it.pem --trainer torch --invitation code-1"),
        (replace(GUIDE, data=replace(DATA, own=True)), None, "--trainer torch --data PATH --invitation code-1"),
        (replace(GUIDE, own_base=True), None, "--trainer torch --base DIR --invitation code-1"),
        (replace(GUIDE, data=replace(DATA, insecure=True)), None, "--trainer torch --insecure --invitation code-1"),
    ],
)
def test_told_command_has_what_a_member_must_say(guide: JoinGuide, tls_ca: Path | None, rest: str) -> None:
    *_, revoking, intro, command = (line.strip() for line in told(MADE, guide, URL, tls_ca).splitlines())
    assert parsed_command(shlex.split(revoking.partition("epochal ")[2]))[0] == "invite"
    assert (f"--tls-ca {tls_ca}" in revoking) == (tls_ca is not None)
    assert ("SHA-256 AB:AB:" in intro) == (guide.own_certificate is not None)
    assert command == f"{COMMAND} {rest}"
    name, _ = parsed_command(shlex.split(command)[1:])
    assert name == "client"
