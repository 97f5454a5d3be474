"""The rows chosen on a list page, for the page that asks for confirmation.

A link chooses one row or all matching ones, and a form the selected ones. Both URLs also contain the list's query
(filter and page), so that later pages can return to the same list. A form's ids are in its body, because hundreds of
long ids don't fit into a URL.
"""

from collections.abc import Collection
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends
from msgspec import Struct
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from palermo.webui.filters import READABLE
from palermo.webui.security.request import MAX_FIELDS
from palermo.webui.site import Refused

#: The URL parameters that choose rows. All others belong to the list.
NAMES = ("act", "id", "all")


class Choice(Struct, frozen=True):
    """The chosen rows and action."""

    #: The action of the form or link, not validated.
    act: str
    #: The chosen rows in order; empty if `every`.
    ids: list[str]
    #: Whether all rows matching the filter are chosen.
    every: bool


async def _choice(request: Request) -> Choice:
    sent: ImmutableMultiDict[str, Any] = request.query_params
    if request.method == "POST":
        sent = await request.form(max_fields=MAX_FIELDS)
    every = bool(sent.get("all"))
    ids = [] if every else list(dict.fromkeys(str(id) for id in sent.getlist("id")))
    return Choice(str(sent.get("act", "")), ids, every)


#: For GET and POST handlers.
Choosing = Annotated[Choice, Depends(_choice)]


def check_act(act: str, known: Collection[str], what: str) -> None:
    """Raises Refused (422) if an action is not one of these, which are `what`, such as "an action for failed jobs"."""
    if act not in known:
        raise Refused(422, f"{act[:40]!r} is not {what}; the {what.split()[1]}s are {', '.join(known)}.")


def list_query(request: Request) -> str:
    given = request.query_params.multi_items()
    return urlencode([(name, value) for name, value in given if name not in NAMES and value], safe=READABLE)
