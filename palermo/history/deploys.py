"""Deploys, recognized by the workers that start: each reports its release."""

from dataclasses import dataclass

#: Seconds after a deploy within which a worker that starts with the release before is only late, and no deploy.
ROLLING = 900.0

#: The most deploys that are kept, the newest.
MOST = 200


@dataclass(frozen=True, slots=True)
class Deploy:
    """The start of the first worker of a release."""

    #: Unix seconds.
    at: float
    release: str


class Deploys:
    """The deploys that a journal shows, oldest first."""

    def __init__(self) -> None:
        self._known: list[Deploy] = []

    def up(self, at: float, release: str) -> None:
        """Note that a worker of this release started; it is a deploy if the release has changed."""
        if not release or any(deploy.release == release for deploy in self._known[-1:]):
            return
        if any(deploy.release == release for deploy in self._known[-2:-1]) and at - self._known[-1].at < ROLLING:
            return
        self._known.append(Deploy(at, release))
        del self._known[:-MOST]

    def since(self, at: float) -> list[Deploy]:
        """The deploys at this instant or later, in Unix seconds."""
        return [deploy for deploy in self._known if deploy.at >= at]
