"""Users of the web pages, their roles, and the type of functions that authenticate a request."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum

from starlette.requests import Request
from starlette.responses import Response


class Role(IntEnum):
    """The rights of a user. Each role includes the rights of the roles before it."""

    #: Look at everything.
    VIEWER = 1
    #: Enqueue, requeue and discard jobs; pause and resume queues; quiet and resume workers.
    OPERATOR = 2
    #: Purge and delete queues; stop and kill workers.
    ADMIN = 3

    @property
    def word(self) -> str:
        """The role's name, as settings, pages and the audit log write it."""
        return self.name.lower()

    @classmethod
    def named(cls, word: str) -> "Role":
        """The role with this name. Raises ValueError."""
        try:
            return cls[word.strip().upper()]
        except KeyError:
            known = ", ".join(role.word for role in cls)
            raise ValueError(f"{word!r} is no role; the roles are {known}") from None


@dataclass(frozen=True, slots=True)
class User:
    """A user, as the authentication names them."""

    name: str
    role: Role = Role.VIEWER


#: Returns the user of a request; None for nobody, which is answered with 401; or a response of its own,
#: such as a redirect to a login page. May be a coroutine function.
Authenticate = Callable[[Request], User | Response | Awaitable[User | Response | None] | None]

#: The user of all requests if no authentication is set. Then only this machine is let in.
LOCAL = User("local", Role.ADMIN)


def ANYONE(request: Request) -> User:
    """For `create_app(auth=ANYONE)`: every request is an administrator's, because a server in front checks access."""
    return User("anyone", Role.ADMIN)
