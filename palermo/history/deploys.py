"""When something else was deployed: told from the workers that come up, each with its release."""

from palermo.core.values import dataclass

#: A worker that comes up with the release before within so many seconds of a deploy is one that was late.
ROLLING = 900.0

#: Deploys that are kept at most, the newest.
MOST = 200


@dataclass(frozen=True, slots=True)
class Deploy:
    """The first worker of a release came up."""

    #: Unix seconds.
    at: float
    release: str


class Deploys:
    """The deploys that a journal tells of, oldest first."""

    def __init__(self) -> None:
        self._known: list[Deploy] = []

    def up(self, at: float, release: str) -> None:
        """A worker of this release came up; the release is another than before, or the same."""
        if not release or any(deploy.release == release for deploy in self._known[-1:]):
            return
        if any(deploy.release == release for deploy in self._known[-2:-1]) and at - self._known[-1].at < ROLLING:
            return
        self._known.append(Deploy(at, release))
        del self._known[:-MOST]

    def since(self, at: float) -> list[Deploy]:
        """Those at this instant or later, Unix seconds."""
        return [deploy for deploy in self._known if deploy.at >= at]
