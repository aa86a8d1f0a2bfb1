"""The page with instructions for joining the run."""

import shlex
from collections.abc import Iterator
from urllib.parse import urlsplit

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.filesize import decimal
from rich.text import Text

from epochal.runtime.connections.loopback import is_loopback
from epochal.runtime.visible_text import visible
from epochal.state.shown.join_guide import JoinGuide
from epochal.view.terminal.run_page import facts
from epochal.view.terminal.view_state import RunPicture

KEY_FILE = "epochal.key"
INDENT = "   "


class Command:
    """A command as a shell takes it, on one line or, where that has no room, on several that end in a backslash.

    Args:
        groups: words that stay together, such as an option and its value.
    """

    def __init__(self, groups: list[str]) -> None:
        self._groups = groups

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room, line = options.max_width - len(" \\"), INDENT + self._groups[0]
        if len(INDENT + " ".join(self._groups)) <= options.max_width:
            yield Text(INDENT + " ".join(self._groups))
            return
        for group in self._groups[1:]:
            if len(line) + 1 + len(group) > room:
                yield Text(f"{line} \\", overflow="fold")
                line = INDENT * 2 + group
            else:
                line += f" {group}"
        yield Text(line, overflow="fold")


def join_page(picture: RunPicture, url: str) -> RenderableType:
    """Return the page with instructions for joining.

    Args:
        picture: of the run.
        url: the coordinator's, as the user gave it.
    """
    guide = picture.guide
    if guide is None:
        return Text("Asking the coordinator…")
    extras = f"[{','.join(guide.extras)}]" if guide.extras else ""
    install = shlex.quote(f"epochal{extras}") if extras else "epochal"
    return Group(
        Text("1. Install, once", style="bold"),
        Text(f"   pipx install {install}"),
        Text("2. Join", style="bold"),
        Command(join_words(guide, url)),
        facts(_needs(guide, url)),
        Text(f"The key in {KEY_FILE} is your place in the run. Ctrl-C finishes the round and leaves.", style="dim"),
    )


def join_words(guide: JoinGuide, url: str) -> list[str]:
    """Return the command that joins the run, for a shell, in groups of words."""
    words = [f"epochal client {shlex.quote(visible(url))}", f"--trainer {shlex.quote(visible(guide.trainer))}"]
    words += [f"--key {KEY_FILE}", "--new-key"]
    words += ["--invitation CODE"] if guide.access == "invitations" else []
    words += ["--data PATH"] if guide.data.own else []
    words += ["--insecure"] if guide.data.insecure else []
    return words


def _needs(guide: JoinGuide, url: str) -> Iterator[tuple[str, str]]:
    admissions = {
        "open": "nothing: anyone may join",
        "keys": f"a key that the operator has admitted: `epochal key new {KEY_FILE}` makes one, and "
        f"`epochal key show {KEY_FILE}` prints what to send the operator",
        "invitations": "an invitation from the operator, in the place of CODE",
    }
    yield "admission", admissions[guide.access]
    more = (
        f", and the package with the task encoder {visible(guide.task_encoder)}, which --allow-package names"
        if guide.task_encoder
        else ""
    )
    yield "software", f"Python 3.11 or newer, epochal {visible(guide.version)}, trainer {visible(guide.trainer)}{more}"
    places = ", ".join(visible(place) for place in guide.data.places) or guide.data.kind
    own = "; a copy of your own, in the place of PATH" if guide.data.own else ""
    here = "; reached from the coordinator's machine only" if guide.data.loopback else ""
    yield "data", f"{places}{own}{here}"
    if is_loopback(urlsplit(url).hostname or ""):
        yield "address", "only this machine reaches it: another one needs the coordinator's own name in its place"
    room = guide.room
    if room is None:
        yield "room", "not known before the run's first checkpoint"
        return
    yield "memory", f"{decimal(room.trainer_bytes)} for {room.parameter_count:,} parameters and their optimizer"
    yield "disk", f"{decimal(room.spool_bytes)} for temporary files, with {room.clients:,} clients"
    down = max(0, room.clients - 1) * room.result_bytes
    rounds = f"{decimal(room.result_bytes)} up and {decimal(down)} down in each round"
    yield "network", f"{decimal(room.download_bytes)} once, then {rounds}"
