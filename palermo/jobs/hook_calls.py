"""Calls of hooks: which hooks apply to a job, in their order, and what their answers mean."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from palermo.jobs import hooks
from palermo.jobs.definition import JobDefinition
from palermo.jobs.hooks import DontEnqueue, DontProcess


def hooks_for(kind: str, definition: JobDefinition, instance: object | None = None) -> tuple[Callable[..., Any], ...]:
    """The hooks of one kind that apply to a job, global ones first; call them with the job's own arguments.

    For on_failure and on_exhausted the error comes before these. `instance` is the object whose `process`
    runs, so that a class's hooks and its process share state.
    """
    own = definition.hooks(kind, instance)
    everywhere = hooks.registered.of(kind)
    return (*(partial(function, definition) for function in everywhere), *own) if everywhere else own


#: The hooks of a run that ends well.
_AROUND_A_RUN = frozenset({"before_process", "around_process", "after_process"})


def has_no_run_hooks(definition: JobDefinition) -> bool:
    """Whether it is a function without a hook for a run that ends well. Asked for each run, as hooks come and go."""
    own = definition.own_hooks.present  # those of a function: a class has them as methods
    return (
        not definition.is_class and _AROUND_A_RUN.isdisjoint(hooks.registered.present) and _AROUND_A_RUN.isdisjoint(own)
    )


def run_before_hooks(
    kind: str,
    definition: JobDefinition,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    instance: object | None = None,
) -> bool:
    """Run the hooks of a `before_…` kind; False as soon as one refuses, by False, DontEnqueue or DontProcess."""
    try:
        calls = hooks_for(kind, definition, instance)
        return not calls or all(call(*args, **kwargs) is not False for call in calls)
    except (DontEnqueue, DontProcess):
        return False


def run_after_hooks(
    kind: str,
    definition: JobDefinition,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    instance: object | None = None,
) -> None:
    """Run the hooks of an `after_…` kind. An error of one is raised, and the hooks behind it do not run."""
    for call in hooks_for(kind, definition, instance):
        call(*args, **kwargs)
