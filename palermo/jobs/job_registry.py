"""The registry of a program's declared jobs, by wire name."""

from typing import TYPE_CHECKING, Any

from palermo.core.text import nearest
from palermo.core.topology import DEFAULT_QUEUE
from palermo.errors import JobNameTaken, JobNotFound

if TYPE_CHECKING:
    from palermo.jobs.definition import JobDefinition
    from palermo.jobs.origin import Origin


class Registry:
    """Jobs by wire name: all jobs that this process can run."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobDefinition] = {}

    def register(self, definition: "JobDefinition") -> None:
        """Add a job. Declaring the same code again replaces the job.

        Raises JobNameTaken if different code has this name, even in the same file.
        """
        known = self._jobs.get(definition.name)
        if known is not None and not _is_again(definition.origin, known.origin):
            places = f"{known.origin.place} and {definition.origin.place}"
            if definition.subscribes is not None and known.subscribes is not None:
                raise JobNameTaken(
                    f"group {definition.name!r} has two functions: {places}. Each group handles an event once, so use"
                    " another group for one of them."
                )
            advice = (
                "Rename one of the two, or remove it."
                if definition.origin.is_same_name(known.origin)
                else "Give one of them another with @palermo.job(name=...)."
            )
            raise JobNameTaken(f"job name {definition.name!r} is declared twice: {places}. {advice}")
        self._jobs[definition.name] = definition

    def unregister(self, name: str) -> None:
        self._jobs.pop(name, None)

    def get(self, name: str) -> "JobDefinition":
        """The job with this name. Raises JobNotFound."""
        try:
            return self._jobs[name]
        except KeyError:
            raise JobNotFound(f"no job {name!r} in this worker.{self._advice(name)}") from None

    def _advice(self, name: str) -> str:
        """Advise what to do about a missing job."""
        module = name.rpartition(".")[0]
        if "<locals>" in name:
            return (
                " It is declared inside a function, which a worker does not call. Declare it at the top level of its"
                " module."
            )
        if module == "__main__":
            return (
                " It is declared in a shell, a notebook or `python -c`, which a worker cannot import. Move it to a"
                " module."
            )
        guess = nearest(name, self._jobs, cutoff=0.8)
        if any(known.rpartition(".")[0] == module for known in self._jobs):
            return (
                f"{guess} The worker has other jobs of {module!r}. If its code is old, restart it. If the job was"
                f" renamed, keep its old name with @palermo.job(name={name!r})."
            )
        start = f"Start it with `palermo worker {module}`, or check" if module else "Check"
        return f"{guess} {start} the name in @palermo.job."

    def find(self, name: str) -> "JobDefinition | None":
        """The job with this name, or None."""
        return self._jobs.get(name)

    def defaults(self, default: str = DEFAULT_QUEUE) -> dict[str, str]:
        """Return the default job of each queue, which takes messages without a job name. Raises JobNameTaken if a queue
        has two.
        """
        found: dict[str, str] = {}
        for name in self.names():
            queue = self._jobs[name].queue or default
            if self._jobs[name].default and (other := found.setdefault(queue, name)) != name:
                raise JobNameTaken(
                    f"queue {queue!r} has two default jobs, {other!r} and {name!r}. Keep default=True on one."
                )
        return found

    def names(self) -> tuple[str, ...]:
        """All wire names, sorted."""
        return tuple(sorted(self._jobs))

    def queues(self, default: str = DEFAULT_QUEUE) -> tuple[str, ...]:
        """Return the queues that jobs declare, sorted; `default` stands for a missing name.

        The queues of event groups are not included.
        """
        return tuple(sorted({one.queue or default for one in self._jobs.values() if one.subscribes is None}))


#: The jobs declared with `@palermo.job` in this process.
registry = Registry()


def declaring(jobs: Registry, option: str) -> dict[str, Any]:
    found = {name: getattr(jobs.get(name), option) for name in jobs.names()}
    return {name: value for name, value in found.items() if value is not None}


def _is_again(new: "Origin", known: "Origin") -> bool:
    """Whether the new code is the known code, executed again by a reload, a shell or a notebook.

    Inner functions are created again by each call of their outer function, so a different inner function of the same
    name is accepted.
    """
    return new.is_same_name(known) and ("<locals>" in new.name or not new.is_written_beside(known))
