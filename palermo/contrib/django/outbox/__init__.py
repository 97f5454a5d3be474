"""An outbox in Django's database: put "palermo.contrib.django.outbox" into INSTALLED_APPS (docs/guides/django.md)."""

from palermo.contrib.django.outbox.outbox import Outbox

__all__ = ["Outbox"]
