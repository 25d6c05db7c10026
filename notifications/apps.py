from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    name = "notifications"
    scopes = ("notifications:read", "notifications:write")
    roles = {
        "viewer": [
            "notifications.view_emailnotification",
            "notifications.view_emailtext",
            "notifications.view_suppression",
            "notifications.view_mailprofile",
        ],
        "support": [
            "notifications.view_emailnotification",
            "notifications.view_emailtext",
            "notifications.view_suppression",
            "notifications.view_mailprofile",
            "notifications.resend_emailnotification",
            "notifications.discard_emailnotification",
            "notifications.copy_emailnotification",
            "notifications.add_suppression",
            "notifications.lift_suppression",
        ],
        "operator": [
            "notifications.resend_hopeless",
            "notifications.lift_complaint",
            "notifications.force_provider",
            "notifications.add_mailprofile",
            "notifications.change_mailprofile",
            "notifications.delete_mailprofile",
        ],
        "editor": ["notifications.edit_texts"],
    }
    shop_rights = (
        "notifications.view_emailnotification",
        "notifications.resend_emailnotification",
        "notifications.resend_hopeless",
        "notifications.discard_emailnotification",
        "notifications.copy_emailnotification",
        "notifications.view_emailtext",
        "notifications.edit_texts",
        "notifications.view_suppression",
        "notifications.view_mailprofile",
        "notifications.add_mailprofile",
        "notifications.change_mailprofile",
        "notifications.delete_mailprofile",
    )

    def ready(self) -> None:
        from django.conf import settings

        from events.consuming import handlers
        from notifications import checks  # noqa: F401 - registers the deploy checks
        from notifications.events import TOPICS

        handlers.register_topics(lambda: TOPICS.values() if settings.EMAIL_EVENTS else ())
