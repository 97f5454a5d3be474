"""Who looks: users and their roles, and how a request is asked whose it is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum

from starlette.requests import Request
from starlette.responses import Response


class Role(IntEnum):
    """What somebody may do; each may do what those before it may."""

    #: Look at everything.
    VIEWER = 1
    #: Enqueue, requeue and discard jobs; pause and resume queues; quiet and resume workers.
    OPERATOR = 2
    #: Purge and delete queues; stop and kill workers.
    ADMIN = 3

    @property
    def word(self) -> str:
        """Its name, as settings, pages and the audit log write it."""
        return self.name.lower()

    @classmethod
    def named(cls, word: str) -> "Role":
        """The role of this name. Raises ValueError."""
        try:
            return cls[word.strip().upper()]
        except KeyError:
            known = ", ".join(role.word for role in cls)
            raise ValueError(f"{word!r} is no role; the roles are {known}") from None


@dataclass(frozen=True, slots=True)
class User:
    """Somebody, as whoever authenticated them says."""

    name: str
    role: Role = Role.VIEWER


#: Whose a request is: a user; None for nobody, which is answered with 401; or a response of its own,
#: such as a redirect to a login page. May be a coroutine function.
Authenticate = Callable[[Request], User | Response | Awaitable[User | Response | None] | None]

#: Who asks where no authentication is set, and so only this machine can.
LOCAL = User("local", Role.ADMIN)


def ANYONE(request: Request) -> User:
    """For `create_app(auth=ANYONE)`: all are administrators, because something in front lets nobody else through."""
    return User("anyone", Role.ADMIN)
