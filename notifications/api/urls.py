"""Routes of notifications below /api/v1/."""

from django.urls import path

from notifications.api import views

urlpatterns = [
    path("notifications", views.Notifications.as_view()),
    path("notifications/<str:id>", views.OneNotification.as_view(), name="notification"),
    path("notifications/<str:id>/resend", views.ResendNotification.as_view()),
    path("notifications/<str:id>/discard", views.DiscardNotification.as_view()),
]
