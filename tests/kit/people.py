"""Users of the admin."""

from __future__ import annotations

from django.contrib.auth.models import Permission, User
from django.test import Client


def staff_client(*permissions: str, name: str = "staff") -> Client:
    """Log in a staff user with only these permissions."""
    user = User.objects.create_user(name, password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client
