"""An operator's actions in the view of a run: each asks for its values and a confirmation, and shows its outcome.

The admin token is in this module's memory alone: it is shown nowhere, and goes with what the operator has said yes to.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import MappingProxyType

from epochal.coordinator_client.operator import check_client_id, eject
from epochal.coordinator_client.operator_client import OperatorClient
from epochal.coordinator_client.token_check import check_admin_token
from epochal.runtime.visible_text import visible
from epochal.state.errors import CoordinatorUnreachable, EpochalError, InvalidInput, Refused
from epochal.state.messages.access_commands import MAX_INVITATION_S, MAX_INVITATION_USES, InvitationRequest
from epochal.state.refusals import Refusal

ACT_S = 30.0
"""Maximum time of an action."""
HOUR_S = 3_600
MAX_ANSWER_CHARS = 256
CANCELLED = "Nothing was done."
NOT_SURE = "whether it was done, the list of actions says once the coordinator answers"

Connect = Callable[[str], Awaitable[OperatorClient]]


@dataclass(frozen=True, slots=True)
class NeededValue:
    """A value that an action needs: its name, what is asked for, and whether it is typed unseen."""

    name: str
    label: str
    default: str = ""
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """Something an operator does.

    Attributes:
        title: as the list of keys has it.
        asked: the values that it needs.
        question: asked before it acts, with the values in braces.
        done: said when the coordinator has accepted it, with the values in braces.
    """

    title: str
    asked: tuple[NeededValue, ...]
    question: str
    done: str


TOKEN = NeededValue(
    "token", "Admin token, which the coordinator printed at its first start (it is not shown)", "", True
)

ACTIONS = MappingProxyType(
    {
        "pause": Action(
            "pause", (), "Pause the run? The round under way ends first. Members stay, and wait.",
            "The run pauses after this round.",
        ),
        "resume": Action(
            "resume", (), "Resume the run? It continues as soon as enough members are ready.", "The run continues."
        ),
        "finish": Action(
            "finish after a step", (NeededValue("step", "Last step"),),
            "End the run after step {step}? It then makes a checkpoint, and nothing is trained after that.",
            "The run ends after step {step}.",
        ),
        "unfinish": Action(
            "take the end back", (), "Take the end back? The run then ends as its state file says.",
            "The run ends as its state file says.",
        ),
        "invite": Action(
            "invite",
            (NeededValue("uses", "Number of uses", "1"), NeededValue("hours", "Hours that it holds (0: no end)", "24")),
            "Make an invitation? Uses: {uses}; hours: {hours} (0: without end). Whoever has the code may join.",
            "The invitation is made. Its code is shown this once: {code}",
        ),
        "eject": Action(
            "eject a member", (NeededValue("client", "Member's id, or its beginning (4 to 32 hex digits)"),),
            "Eject member {client}? Its work in this round is lost, and its key may not join again.",
            "Member {client} was ejected.",
        ),
    }
)  # fmt: skip
"""The actions by name."""


@dataclass(slots=True)
class OperatorDesk:
    """One action at a time: `begin`, `answer` what is `asked`, then `act` after the question.

    Attributes:
        connect: returns a client with the token, for one action.
        address: the coordinator's, as the user gave it.
        token: the admin token; None until it is given.
        action: the name of the one that is asked about; "" without one.
        outcome: what became of the last one.
        is_refused: whether the outcome is a refusal.
        is_acting: whether one is under way.
    """

    connect: Connect
    address: str = ""
    token: str | None = field(default=None, repr=False)
    action: str = ""
    outcome: str = ""
    is_refused: bool = False
    is_acting: bool = False
    _given: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def asked(self) -> NeededValue | None:
        """Return the next value that the action needs; None once it has all, or without an action."""
        if not self.action or self.is_acting:
            return None
        if self.token is None:
            return TOKEN
        return next((one for one in ACTIONS[self.action].asked if one.name not in self._given), None)

    @property
    def question(self) -> str:
        """Return what is asked before the action; "" while a value is missing, or without an action."""
        if not self.action or self.asked is not None or self.is_acting:
            return ""
        return ACTIONS[self.action].question.format(**self._given)

    def begin(self, action: str, **given: str) -> None:
        """Begin an action, with values that are known."""
        if not self.is_acting:
            self.action, self._given = action, {}
            self.say("")
            for name, value in given.items():
                self._given[name] = _checked(name, value)

    def cancel(self) -> None:
        """Do nothing, if an action is asked about."""
        if self.action and not self.is_acting:
            self.action, self._given = "", {}
            self.say(CANCELLED)

    def forget(self) -> None:
        """Forget the token, and an invitation's code."""
        self.token = None
        self.cancel()
        self.say("The token is forgotten.")

    def say(self, outcome: str, *, is_refused: bool = False) -> None:
        """Say how it went."""
        self.outcome, self.is_refused = outcome, is_refused

    def answer(self, text: str) -> None:
        """Take the requested value; a wrong one is reported, and requested again."""
        asked = self.asked
        if asked is None:
            return
        try:
            if asked is TOKEN:
                self.token = _checked(asked.name, text)
            else:
                self._given[asked.name] = _checked(asked.name, text.strip() or asked.default)
            self.say("")
        except InvalidInput as error:
            self.say(str(error), is_refused=True)

    async def act(self) -> None:
        """Do what was asked, once there is a question, and say how it went."""
        if not self.question or self.token is None:
            return
        name, given = self.action, self._given
        self.is_acting = True
        self.say("Asking the coordinator…")
        try:
            async with asyncio.timeout(ACT_S), await self.connect(self.token) as operator:
                more = await self._requested(operator, name, given)
            self.say(ACTIONS[name].done.format(**(given | more)))
        except TimeoutError:
            self.say(f"{name}: no answer within {ACT_S:.0f} s; {NOT_SURE}", is_refused=True)
        except EpochalError as error:
            self._failed(name, error)
        finally:
            self.is_acting, self.action, self._given = False, "", {}

    def _failed(self, name: str, error: EpochalError) -> None:
        why = visible(str(error))
        if isinstance(error, Refused) and error.kind in {Refusal.FORBIDDEN, Refusal.UNAUTHORIZED}:
            self.token, why = None, "this is not the admin token; it is forgotten, and is asked for again"
        elif isinstance(error, CoordinatorUnreachable):
            why = f"{why}; {NOT_SURE}"
        self.say(f"{name} was refused: {why}" if isinstance(error, Refused) else f"{name}: {why}", is_refused=True)

    async def _requested(self, operator: OperatorClient, name: str, given: dict[str, str]) -> dict[str, str]:
        """Send the request; return what the outcome needs to name."""
        if name == "pause":
            await operator.pause()
        elif name == "resume":
            await operator.resume()
        elif name == "eject":
            return {"client": await eject(operator, given["client"])}
        elif name == "invite":
            expires_s = float(given["hours"]) * HOUR_S
            made = await operator.invite(InvitationRequest(int(given["uses"]), expires_s or None))
            return {"code": shlex.quote(visible(made.code))}
        else:
            await operator.finish(int(given["step"]) if name == "finish" else None)
        return {}


def _checked(name: str, value: str) -> str:
    """Return a value. Raise `InvalidInput` unless it is one of its name."""
    if name == "token":
        token = value.strip()
        if not token:
            raise InvalidInput("no token was typed; Esc leaves without doing anything")
        check_admin_token(token)
        return token
    if name == "client":
        check_client_id(value.lower())
        return value.lower()
    most = {"step": 2**53, "uses": MAX_INVITATION_USES, "hours": int(MAX_INVITATION_S / HOUR_S)}[name]
    least = 1 if name == "uses" else 0
    if not (value.isascii() and value.isdigit() and len(value) <= len(str(most)) and least <= int(value) <= most):
        raise InvalidInput(
            f"{name}: {visible(value)!r} is not allowed; allowed: a whole number from {least} to {most:,}"
        )
    return str(int(value))
