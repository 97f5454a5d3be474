"""The tables of the shop."""

from django.db import models


class Order(models.Model):
    """An order, and whether its receipt was sent."""

    email = models.EmailField()
    total = models.PositiveIntegerField()
    receipt_sent = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.email}: {self.total}"
