"""The table of the outbox."""

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates the table."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="OutboxEntry",
            fields=[
                ("number", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", models.CharField(db_index=True, max_length=255)),
                ("job", models.CharField(max_length=255)),
                ("arguments", models.TextField()),
                ("options", models.TextField()),
                ("created_at", models.FloatField()),
                ("error", models.TextField(null=True)),
            ],
            options={"db_table": "palermo_outbox", "verbose_name_plural": "outbox entries"},
        )
    ]
