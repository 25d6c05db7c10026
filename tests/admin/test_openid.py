"""People who log in by OpenID Connect: their rights, their names, and how long they stay."""

from __future__ import annotations

import time
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from environs import ValidationError

from config.validation import issuer, parse_group_map
from runtime.models import AuditRow
from runtime.models.bindings import binding_of
from tests.kit.openid import (
    CLIENT_ID,
    LOGIN,
    MAP,
    OpenIdProvider,
    come,
    follow,
    one_provider,
    provider,
    way_back,
)
from tests.kit.people import make_user
from web.login.own_address import own_address
from web.login.rights import NoEntry, read_rights

__all__ = ["one_provider", "provider"]
pytestmark = pytest.mark.django_db


def groups_of(user: User) -> list[str]:
    return sorted(user.groups.values_list("name", flat=True))


def is_in(client: Client) -> bool:
    return client.get("/admin/orders/order/").status_code == 200


def forward(client: Client, seconds: int) -> None:
    """Let time pass for a session."""
    session = client.session
    for name in ("login_at", "click_at", "oidc_at"):
        if name in session:
            session[name] -= seconds
    session.save()


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({}, "has no claim “groups”"),
        ({"_claim_names": {"groups": "src1"}}, "very many groups"),  # as Entra ID does above 200 groups
        ({"groups": {"a": 1}}, "has no claim"),
        ({"groups": None}, "has no claim"),
        ({"groups": []}, "None of your groups"),
        ({"groups": [["shop-support"], 1, None]}, "None of your groups"),
        ({"groups": ["shop-support-2", "superuser", "operator"]}, "None of your groups"),
        ({"groups": ["shop-support", "shop-ops"]}, "different shops"),
    ],
)
def test_claims_without_rights_say_why(settings, claims, said):
    settings.OIDC_GROUPS_CLAIM, settings.OIDC_GROUP_MAP = "groups", MAP
    with pytest.raises(NoEntry, match=said):
        read_rights(claims)


def test_claims_with_several_groups_of_one_binding_give_them_all(settings):
    settings.OIDC_GROUPS_CLAIM, settings.OIDC_GROUP_MAP = "groups", MAP
    rights = read_rights({"groups": ["shop-texts", "others", "shop-support"]})
    assert rights == (["editor", "support"], ["coffee", "tea"])


@pytest.mark.parametrize(
    "text",
    ["support", "=support", "a=", "a=@tea", "a=support@", "a=support@tea+", "a=support@*+tea", "a=x,a=y"],
)
def test_a_map_that_is_none_is_refused(text):
    with pytest.raises(ValidationError, match="OIDC_GROUP_MAP"):
        parse_group_map("OIDC_GROUP_MAP", text)


@pytest.mark.parametrize("value", ["login.example.com", "http://login.example.com", "https://a.example/?x=1"])
def test_an_issuer_is_an_address_over_tls(value):
    with pytest.raises(ValidationError):
        issuer(value)
    issuer("https://login.example.com/realms/shop")
    issuer("")


class TestLogin:
    def test_it_makes_a_user_with_the_rights_of_the_claim_and_no_second_factor_of_ours(self, provider):
        client = Client()
        answer = come(client, provider, "/admin/orders/order/")
        assert (answer.status_code, answer.headers["Location"]) == (302, "/admin/orders/order/")
        assert is_in(client)
        user = User.objects.get()
        assert (user.username, user.is_staff, user.is_superuser) == ("ann", True, False)
        assert not user.has_usable_password() and groups_of(user) == ["support"]
        assert binding_of(user).words == ["coffee", "tea"]
        account = SocialAccount.objects.get()
        assert (account.provider, account.uid, account.extra_data) == (
            provider.url,
            "ann-1",
            {"sub": "ann-1"},
        )
        [asked] = provider.asked
        assert asked["code_challenge_method"] == "S256" and asked["nonce"] and asked["state"]
        assert (asked["response_type"], "prompt" in asked) == ("code", False)

    def test_its_rights_follow_the_claim_at_each_login_and_nothing_else_stays(self, provider):
        come(Client(), provider)
        user = User.objects.get()
        user.user_permissions.set(Permission.objects.filter(codename="change_user"))
        user.groups.add(Group.objects.get(name="operator"))
        User.objects.update(is_superuser=True)
        provider.claims["groups"] = ["shop-texts"]
        come(Client(), provider)
        user.refresh_from_db()
        assert groups_of(user) == ["editor"] and binding_of(user).words == ["coffee", "tea"]
        provider.claims["groups"] = ["shop-ops"]
        come(Client(), provider)
        user = User.objects.get()
        assert groups_of(user) == ["operator"] and binding_of(user).is_unbound
        assert not user.is_superuser and not user.user_permissions.exists()

    def test_lost_groups_end_the_rights_and_every_session_and_nobody_new_comes_in(self, provider):
        session = Client()
        come(session, provider)
        assert is_in(session)
        provider.claims["groups"] = ["others"]
        answer = come(Client(), provider)
        assert answer.status_code == 403 and "None of your groups" in answer.content.decode()
        assert groups_of(User.objects.get()) == [] and not is_in(session)
        assert binding_of(User.objects.get()).words == []
        provider.claims["sub"] = "nobody-yet"
        assert come(Client(), provider).status_code == 403 and User.objects.count() == 1

    def test_a_group_that_does_not_exist_here_is_named(self, provider):
        provider.claims["groups"] = ["shop-lost"]
        assert "“no-such-group”, which does not exist" in come(Client(), provider).content.decode()

    def test_a_claim_of_201_groups_gives_the_mapped_ones(self, provider):
        provider.claims["groups"] = [f"group-{number}" for number in range(199)] + [
            "shop-texts",
            "shop-support",
        ]
        come(Client(), provider)
        assert groups_of(User.objects.get()) == ["editor", "support"]

    @pytest.mark.parametrize("name", ["admin", "Admin"])
    def test_the_name_and_address_of_another_user_give_nothing_of_theirs(self, provider, name):
        admin = User.objects.create_superuser("admin", "boss@example.com", "right horse battery")
        provider.claims |= {"preferred_username": name, "email": "boss@example.com", "email_verified": True}
        client = Client()
        come(client, provider)
        user = User.objects.exclude(pk=admin.pk).get()
        assert user.username == f"{name}-2" and not user.is_superuser
        assert client.session["_auth_user_id"] == str(user.pk)
        provider.claims["preferred_username"] = "boss"
        come(Client(), provider)
        assert User.objects.count() == 2 and SocialAccount.objects.get().user == user

    @pytest.mark.parametrize("group", ["viewer", "support", "operator", "editor"])
    def test_it_gives_what_a_user_made_here_has(self, provider, settings, group):
        """Who may see what (tests/admin/test_who_may_see.py) depends on nothing else."""
        settings.OIDC_GROUP_MAP = {"shop-support": (group, ("own", "tea"))}
        ours = make_user("bob", group=group, shops=["own", "tea"])
        come(Client(), provider)
        theirs = User.objects.get(username="ann")
        assert theirs.get_all_permissions() == ours.get_all_permissions() != set()
        assert binding_of(theirs) == binding_of(ours)
        for name in ("is_staff", "is_superuser", "is_active"):
            assert getattr(theirs, name) == getattr(ours, name)

    @pytest.mark.parametrize(
        ("claims", "address"),
        [
            ({"email": "Ann@example.com", "email_verified": True}, "Ann@example.com"),
            ({"email": "ann@example.com", "email_verified": "true"}, ""),
            ({"email": "ann@example.com"}, ""),
            ({"email": "ann", "email_verified": True}, ""),
            ({"email_verified": True}, ""),
        ],
    )
    def test_an_address_that_the_provider_verified_is_the_own_one(self, provider, claims, address):
        provider.claims |= claims
        for _ in range(2):
            come(Client(), provider)
        user = User.objects.get()
        assert user.email == address and "email" in provider.asked[0]["scope"].split()
        assert AuditRow.objects.filter(act__startswith="Address confirmed by").count() == bool(address)
        if address:
            assert own_address(user) == address
            provider.claims["email"] = "new@example.com"
            come(Client(), provider)
            assert own_address(User.objects.get()) == "new@example.com"

    def test_another_issuer_has_other_people(self, provider, settings):
        come(Client(), provider)
        SocialAccount.objects.update(provider="https://before.example.com")
        come(Client(), provider)
        assert sorted(User.objects.values_list("username", flat=True)) == ["ann", "ann-2"]

    def test_a_deactivated_user_stays_out(self, provider):
        come(Client(), provider)
        User.objects.update(is_active=False)
        answer = come(Client(), provider)
        assert answer.status_code == 403 and "deactivated" in answer.content.decode()

    def test_a_name_that_is_none_gets_another(self, provider):
        provider.claims["preferred_username"] = " \x00/ "
        come(Client(), provider)
        assert User.objects.get().username.startswith("person-")

    def test_its_user_cannot_log_in_by_password(self, provider):
        come(Client(), provider)
        user = User.objects.get()
        user.set_password("right horse battery")
        user.save()
        answer = Client().post("/admin/login/", {"username": "ann", "password": "right horse battery"})
        assert answer.status_code == 200 and "not by password" in answer.content.decode()


class TestToken:
    @pytest.mark.parametrize(
        "forged",
        [
            {"aud": "another-client"},
            {"aud": [CLIENT_ID, "another-client"], "azp": "another-client"},
            {"iss": "https://another.example.com"},
            {"exp": 1_000_000_000},
            {"nonce": "of-another-login"},
            {"nonce": None},
            {"sub": None},
        ],
        ids=lambda forged: "-".join(forged),
    )
    def test_a_token_that_is_not_of_this_login_is_refused(self, provider, forged):
        provider.forged = forged
        answer = come(Client(), provider)
        assert answer.status_code == 403 and not User.objects.exists()

    def test_a_token_with_another_signature_is_refused(self, provider):
        provider.key = 1
        assert come(Client(), provider).status_code == 403
        assert not User.objects.exists()

    def test_a_code_counts_once_and_only_in_the_browser_that_asked(self, provider):
        client = Client()
        back = way_back(client, provider)
        assert Client().get(back).status_code == 403  # the state is of another session
        assert client.get(back).status_code == 302
        assert client.get(back).status_code == 403 and not Client().get(back).cookies.get("sessionid")
        code = back.partition("code=")[2].partition("&")[0]
        other = Client()
        state = way_back(other, provider).partition("state=")[2].partition("&")[0]
        assert other.get(f"{LOGIN}answer/?code={code}&state={state}").status_code == 403

    def test_a_provider_that_is_away_or_is_another_one_is_a_page(self, provider, settings):
        settings.OIDC_ISSUER = f"{provider.url}/"  # the document names it without the slash
        assert Client().get(LOGIN).status_code == 403
        settings.OIDC_ISSUER = "http://127.0.0.1:9"
        assert Client().get(LOGIN).status_code == 403


class TestRenewal:
    def test_after_an_hour_the_provider_is_asked_silently(self, provider):
        client = Client()
        come(client, provider)
        forward(client, 3590)
        assert is_in(client)
        forward(client, 20)
        client.session["click_at"] = int(time.time())
        away = client.get("/admin/orders/order/?status=paid")
        back = self.be_sent(client, away, provider)
        assert provider.asked[-1]["prompt"] == "none"
        answer = client.get(back)
        assert answer.headers["Location"] == "/admin/orders/order/?status=paid"
        assert is_in(client) and len(provider.asked) == 2

    def be_sent(self, client: Client, away: Any, provider: OpenIdProvider) -> str:
        assert away.status_code == 302 and away.headers["Location"].startswith(LOGIN)
        return follow(client.get(away.headers["Location"]).headers["Location"], provider)

    def renew(self, client: Client, provider: OpenIdProvider) -> Any:
        session = client.session
        session["oidc_at"] -= 3700
        session.save()
        return client.get(self.be_sent(client, client.get("/admin/orders/order/"), provider))

    def test_a_group_that_was_taken_away_ends_the_session_within_the_hour(self, provider):
        client = Client()
        come(client, provider)
        provider.claims["groups"] = ["others"]
        assert is_in(client)
        assert self.renew(client, provider).status_code == 403
        assert not is_in(client) and groups_of(User.objects.get()) == []

    def test_a_person_who_is_logged_out_there_is_logged_out_here(self, provider):
        client = Client()
        come(client, provider)
        provider.claims = None
        answer = self.renew(client, provider)
        assert answer.headers["Location"] == "/admin/login/?next=/admin/orders/order/"
        assert not is_in(client)

    def test_another_person_there_ends_the_session_here(self, provider):
        client = Client()
        come(client, provider)
        provider.claims["sub"] = "bob-1"
        assert self.renew(client, provider).status_code == 403
        assert not is_in(client)

    def test_a_posted_form_is_kept_and_can_be_sent_afterwards(self, provider):
        provider.claims["groups"] = ["shop-ops"]
        client = Client()
        come(client, provider)
        session = client.session
        session["oidc_at"] -= 3700
        session.save()
        form = {"parts": "delivery", "reason": "moving <b>Valkey</b>"}
        page = "/admin/runtime/pause/"
        answer = client.post(page, form)
        text = answer.content.decode()
        assert answer.status_code == 403 and 'value="moving &lt;b&gt;Valkey&lt;/b&gt;"' in text
        assert f'action="{page}"' in text
        back = follow(client.get(f"{LOGIN}?next=/admin/login/oidc/renewed/").headers["Location"], provider)
        assert client.get(back).headers["Location"] == "/admin/login/oidc/renewed/"
        assert "Close this tab" in client.get("/admin/login/oidc/renewed/").content.decode()
        assert client.post(page, form).status_code != 403

    def test_a_forged_post_is_refused_before_its_fields_are_shown(self, provider):
        client = Client(enforce_csrf_checks=True)
        come(client, provider)
        session = client.session
        session["oidc_at"] -= 3700
        session.save()
        answer = client.post("/admin/runtime/pause/", {"reason": "evil"})
        assert answer.status_code == 403 and "evil" not in answer.content.decode()

    def test_a_refresh_of_a_page_asks_nobody(self, provider):
        client = Client()
        come(client, provider)
        session = client.session
        session["oidc_at"] -= 3700
        session.save()
        assert client.get("/admin/?part=1").status_code == 401
