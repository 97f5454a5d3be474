"""The settings of the example, with Django's tasks on Palermo; older versions of Django have them from a package."""

from django_shop.settings import *  # noqa: F403

ALLOWED_HOSTS = ["testserver"]
TASKS = {
    "default": {
        "BACKEND": "palermo.contrib.django.backend.PalermoBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"timeout": 60},
    }
}
