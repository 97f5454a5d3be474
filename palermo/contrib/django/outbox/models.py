"""The table of the outbox."""

from django.db import models


class OutboxEntry(models.Model):
    """A job waiting to be moved to the broker."""

    number = models.BigAutoField(primary_key=True)
    job_id = models.CharField(max_length=255, db_index=True)
    job = models.CharField(max_length=255)
    arguments = models.TextField()
    options = models.TextField()
    created_at = models.FloatField()
    #: Why the row can't be enqueued. Such rows stay until an operator fixes or deletes them.
    error = models.TextField(null=True)

    class Meta:
        """Names of the table and of the model."""

        db_table = "palermo_outbox"
        verbose_name_plural = "outbox entries"

    def __str__(self) -> str:
        return f"{self.job} {self.job_id}"
