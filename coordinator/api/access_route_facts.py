"""Facts about the routes on access, the end of the run, audits and the past, for the API's description."""

from collections.abc import Mapping
from typing import Any

from epochal.coordinator.api.request_parts import RUN
from epochal.runtime.http.openapi import EVERY_MESSAGE, Operation, Operations
from epochal.state.refusals import Refusal


def access_operations(admin: str, of_admin: tuple[Refusal, ...], viewers: tuple[str | None, ...]) -> Operations:
    """Return the routes' facts.

    Args:
        admin: name of the admin token's security scheme.
        of_admin: refusals of every route that needs it.
        viewers: names of the security schemes of those who look at a run.
    """
    acts = (*of_admin, Refusal.OVERLOADED, Refusal.NOT_NOW)
    done: Mapping[int | str, Any] = {204: {"description": "Done"}}
    looks = (
        *(*of_admin, Refusal.OVERLOADED, Refusal.RATE_LIMITED),
        *(Refusal.STORE_FAILED, Refusal.NOT_FOUND, Refusal.INVALID_PARAMETER),
    )
    past = f"{RUN}/history/versions/{{version}}"
    return {
        ("GET", f"{past}/members"): Operation(looks, viewers),
        ("GET", f"{past}/trust"): Operation(looks, viewers),
        ("GET", f"{past}/explanation"): Operation(looks, viewers),
        ("GET", f"{RUN}/trust"): Operation((*of_admin, Refusal.OVERLOADED), viewers),
        ("GET", f"{RUN}/actions"): Operation((*of_admin, Refusal.OVERLOADED), viewers),
        ("GET", f"{RUN}/audits"): Operation(of_admin, viewers),
        ("PUT", f"{RUN}/finish"): Operation((*acts, *EVERY_MESSAGE), (admin,), answers=done),
        ("GET", f"{RUN}/invitations"): Operation(of_admin, (admin,)),
        ("POST", f"{RUN}/invitations"): Operation((*acts, *EVERY_MESSAGE), (admin,)),
        ("DELETE", f"{RUN}/invitations/{{sha256}}"): Operation((*acts, Refusal.NOT_FOUND), (admin,), answers=done),
        ("GET", f"{RUN}/access"): Operation(of_admin, (admin,)),
        ("PUT", f"{RUN}/access/{{public_key}}"): Operation((*acts, Refusal.INVALID_PARAMETER), (admin,), answers=done),
        ("DELETE", f"{RUN}/access/{{public_key}}"): Operation(
            (*acts, Refusal.INVALID_PARAMETER, Refusal.NOT_FOUND), (admin,), answers=done
        ),
        ("POST", f"{RUN}/audits"): Operation((*of_admin, Refusal.OVERLOADED, *EVERY_MESSAGE), (admin,), answers=done),
    }
