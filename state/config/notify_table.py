"""`[notify]`: the addresses that the coordinator notifies about the run, and when (docs/notifications.md)."""

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field

from epochal.state.config.schema import Duration, Positive, Section

MAX_WEBHOOKS = 8
MAX_WEBHOOK_CHARS = 2048
MAX_LOSS_ROUNDS = 128
VARIABLE_PREFIX = "env:"
DEFAULT_FREE_BYTES = 1024**3

NoticeKind = Literal["members", "no-outcome", "loss", "quarantine", "member_convicted", "room", "checkpoint", "end"]
"""The kinds of notices: too few members; rounds without an outcome; a loss that rises or is not finite; batches in
quarantine; a conviction; little room on the disk or for blobs; a checkpoint; the end of the run."""
NOTICE_KINDS: tuple[NoticeKind, ...] = get_args(NoticeKind)

_VARIABLE = r"env:[A-Za-z_][A-Za-z0-9_]*"
WebhookUrl: TypeAlias = Annotated[
    str,
    Field(
        pattern=rf"^([a-z][a-z0-9+.-]*://[^\s\x00-\x1f\x7f/][^\s\x00-\x1f\x7f]*|{_VARIABLE})$",
        max_length=MAX_WEBHOOK_CHARS,
        repr=False,
        description='"https://…", a URL of apprise, or "env:NAME" for the value of an environment variable',
    ),
]
WebhookSecret: TypeAlias = Annotated[
    str | None,
    Field(
        pattern=rf"^{_VARIABLE}$",
        repr=False,
        description='"env:NAME", an environment variable that holds it, or no such line',
    ),
]


class Webhook(Section):
    """`[[notify.webhooks]]`: one address that is notified.

    Attributes:
        url: `https://…` and `http://…` take a POST of JSON, other URLs are apprise's (`slack://…`, `ntfy://…`);
            `env:NAME` keeps an address that is a secret, as Slack's and Discord's are, out of the file.
        secret: key of the signature (HMAC-SHA256) of such a POST.
        on: kinds of the notices that are sent there.
    """

    url: WebhookUrl
    secret: WebhookSecret = None
    on: Annotated[
        tuple[NoticeKind, ...],
        Field(
            strict=False, min_length=1, max_length=len(NOTICE_KINDS), description=f"a list of {', '.join(NOTICE_KINDS)}"
        ),
    ] = NOTICE_KINDS


class NotifyConfig(Section):
    """`[notify]`: the webhooks that the coordinator notifies about the run, and when. Epochal's addition.

    Attributes:
        webhooks: the addresses that are notified.
        period_s: of each kind at most one notice is sent in this time.
        rounds_without_outcome: number of rounds in a row without an outcome after which a notice is sent.
        loss_rounds: number of applied rounds of which the mean loss is compared with the lowest such mean.
        loss_rise: part by which it must be above that for a notice.
        free_bytes: room on the coordinator's disk below which a notice is sent.
    """

    webhooks: Annotated[
        tuple[Webhook, ...],
        Field(strict=False, max_length=MAX_WEBHOOKS, description=f"a list of up to {MAX_WEBHOOKS} tables"),
    ] = ()
    period_s: Duration = 3600.0
    rounds_without_outcome: Positive = 10
    loss_rounds: Annotated[int, Field(ge=1, le=MAX_LOSS_ROUNDS)] = 20
    loss_rise: Annotated[float, Field(gt=0, le=1000, description="a number above 0, at most 1000")] = 0.05
    free_bytes: Annotated[int, Field(ge=0, le=2**60)] = DEFAULT_FREE_BYTES

    def wants(self, kind: NoticeKind) -> bool:
        """Whether any address receives notices of this kind."""
        return any(kind in webhook.on for webhook in self.webhooks)


def variable_of(text: str) -> str | None:
    """Return the environment variable that a webhook's line names; None if it holds the value itself."""
    return text.removeprefix(VARIABLE_PREFIX) if text.startswith(VARIABLE_PREFIX) else None
