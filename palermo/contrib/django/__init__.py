"""Palermo in Django: put "palermo.contrib.django" into INSTALLED_APPS (docs/guides/django.md)."""

from palermo.contrib.django.on_commit import enqueue_on_commit

__all__ = ["enqueue_on_commit"]
