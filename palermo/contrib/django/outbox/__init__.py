"""An outbox in Django's database: add "palermo.contrib.django.outbox" to INSTALLED_APPS (docs/guides/django.md)."""

from palermo.contrib.django.outbox.outbox import Outbox

__all__ = ["Outbox"]
