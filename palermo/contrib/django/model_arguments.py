"""Rejects model instances as arguments of jobs. Pass the id instead, so that the job loads the current row."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db.models import Model, QuerySet

from palermo.contrib.django.configuration import configuration
from palermo.errors import ArgumentsInvalid
from palermo.jobs.definition import JobDefinition


def refuse_models(definition: JobDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ArgumentsInvalid if an argument is a model instance or query set, or a container directly holding one."""
    if configuration().model_arguments:
        return
    for name, value in (*enumerate(args, 1), *kwargs.items()):
        for each in _inside(value):
            if isinstance(each, Model):
                kind = type(each).__name__
                raise ArgumentsInvalid(
                    f"argument {name} of job {definition.name!r} is the model instance {each!r}. Pass its id,"
                    f" {each.pk!r}, and let the job load it: {kind}.objects.get(pk=...). The row may change or be"
                    ' deleted before the job runs. To allow instances, set PALERMO["model_arguments"] = True and use'
                    " a serializer that supports them."
                )
            if isinstance(each, QuerySet):
                raise ArgumentsInvalid(
                    f"argument {name} of job {definition.name!r} is a query set of {each.model.__name__}. Pass the"
                    ' ids: list(queryset.values_list("pk", flat=True)).'
                )


def before_enqueue_refuse_models(definition: JobDefinition, /, *args: Any, **kwargs: Any) -> None:
    """The hook for all jobs."""
    refuse_models(definition, args, kwargs)


def _inside(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
