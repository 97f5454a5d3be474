"""The Django app, which finds a project's settings and jobs, and adds the hooks."""

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.utils.module_loading import autodiscover_modules

import palermo
from palermo.contrib.django import configuration
from palermo.contrib.django.database import before_first_fork_tend_django_connections
from palermo.contrib.django.model_arguments import before_enqueue_refuse_models
from palermo.errors import PalermoError


class PalermoConfig(AppConfig):
    """The app "palermo.contrib.django"."""

    name = "palermo.contrib.django"
    label = "palermo"
    verbose_name = "Palermo"

    def ready(self) -> None:
        """Called after the models of all apps are loaded."""
        configuration.declare()
        palermo.hook(before_first_fork_tend_django_connections)
        palermo.hook(before_enqueue_refuse_models)
        checks.register(check_settings)
        autodiscover_modules(*configuration.configuration().autodiscover)


def check_settings(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """System check of settings.PALERMO."""
    try:
        configuration.check()
    except PalermoError as error:
        return [checks.Error(str(error), id="palermo.E001")]
    return []
