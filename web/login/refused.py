"""The page that says why somebody may not go on."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def refuse(request: HttpRequest, reason: str) -> HttpResponse:
    return render(request, "login/refused.html", {"title": "No login", "reason": reason}, status=403)
