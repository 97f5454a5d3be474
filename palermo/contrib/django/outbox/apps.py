"""The Django app of the outbox: its table and its migrations."""

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """The app "palermo.contrib.django.outbox"."""

    name = "palermo.contrib.django.outbox"
    label = "palermo_outbox"
    verbose_name = "Palermo's outbox"
    default_auto_field = "django.db.models.BigAutoField"
