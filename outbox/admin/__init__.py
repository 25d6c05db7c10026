"""The admin pages of the engine's own tables; `base` is for the admin modules of all apps."""

from django.contrib import admin

from outbox.admin import events, heartbeats, partitions, tokens

__all__ = ["events", "heartbeats", "partitions", "tokens"]

# The lists need the width more than a second menu.
admin.site.enable_nav_sidebar = False
admin.site.site_header = admin.site.site_title = "orderpost"
admin.site.site_url = "/api/docs"
