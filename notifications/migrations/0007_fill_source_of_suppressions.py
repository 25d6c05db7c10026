"""List a shop's suppressions by an index, and give those a source whose e-mails are not archived.

The others stay without one, as those do that the release before writes. A bound user does not see them.
"""

from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import F, Q

#: Rows of one statement.
BATCH = 1_000


def fill(apps: Any, schema_editor: Any) -> None:
    using = schema_editor.connection.alias
    rows = apps.get_model("notifications", "Suppression").objects.using(using)
    emails = apps.get_model("notifications", "EmailNotification").objects.using(using)
    open_rows = rows.filter(source=None, notification_id__isnull=False).order_by("id")
    last = None
    while True:
        batch = list((open_rows.filter(id__gt=last) if last else open_rows)[:BATCH])
        if not batch:
            return
        last = batch[-1].id
        causes = [row.notification_id for row in batch]
        sources = dict(emails.filter(id__in=causes).values_list("id", "source"))
        for row in batch:
            row.source = sources.get(row.notification_id)
        rows.bulk_update(batch, ["source"])


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("notifications", "0006_source_of_suppressions")]

    operations = [
        AddIndexConcurrently(
            "suppression",
            models.Index(
                F("source"), F("id").desc(), name="suppressions_source", condition=Q(source__isnull=False)
            ),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
