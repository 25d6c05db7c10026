"""Read every setting of every process once from the environment, in fixed sections.

docs/reference/configuration.md lists the variables. `NAME_FILE` may name a file with the value of `NAME`. For
a bad value the process exits with a message that names the variable. `make run` writes its addresses to
`var/local.env`, for `manage.py` next to `make run`. They apply to variables that the environment leaves
unset.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import django_stubs_ext
from anymail.exceptions import AnymailNotSupportedWarning
from django.core.exceptions import ImproperlyConfigured
from dotenv import load_dotenv
from environs import FileAwareEnv, validate
from sentry_sdk.utils import BadDsn

from config import sentry
from config.database_url import parse_archive, parse_database
from config.roles import parse_switch
from config.unknown import find_unknown
from config.validation import (
    appendable,
    at_least_one,
    delays,
    email_address,
    email_address_or_empty,
    issuer,
    long_keys,
    name_of,
    names_of,
    names_of_systems,
    networks,
    not_negative,
    parse_group_map,
    parse_options,
    positive,
    web_address,
)
from notifications.providers import registry
from orders.events import DEFAULT_EMAILS, EMAILS
from runtime.telemetry.release import version

django_stubs_ext.monkeypatch()
warnings.simplefilter("ignore", AnymailNotSupportedWarning)  # docs/guides/providers.md explains it

BASE_DIR = Path(__file__).resolve().parent.parent
LOCAL_ENV = BASE_DIR / "var" / "local.env"


class _Environment(FileAwareEnv):
    """Read switches as `config.roles` does."""

    def bool(self, name: str, default: Any = None) -> Any:  # type: ignore[override]
        value = self.str(name, "").strip()
        return parse_switch(name, value) if value else default


env = _Environment(eager=True, strip_whitespace=True)  # editors end a file with a line break
# A line break at the end of a key's file is part of the key: stored hashes were made with it.
raw = FileAwareEnv(eager=True)
load_dotenv(LOCAL_ENV)  # into os.environ, where boto3 finds its own variables


def _database(
    name: str,
    default: str | None = None,
    *,
    timeout: float,
    max_age: int | None = 600,
    direct: bool = False,
    prefer: str = "read-write",
) -> dict[str, Any]:
    url = env.str(name, default) or ""
    if not url.startswith(("postgres://", "postgresql://")):
        raise ImproperlyConfigured(
            f"{name} must be a postgresql:// URL. Set it, or start the local stack with `make run`."
        )
    try:
        parsed = parse_database(url, prefer=prefer)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} is not the URL of a database: {error}") from None
    database: dict[str, Any] = {
        **parsed,
        "ENGINE": "runtime.database.postgres",
        "CONN_MAX_AGE": max_age,
        "CONN_HEALTH_CHECKS": True,
    }
    options = database.setdefault("OPTIONS", {})
    options.setdefault("application_name", "orderpost")
    # Only the client's deadline ends a wait for a frozen server. TCP's settings detect a lost host.
    options["deadline"] = timeout
    options.setdefault("connect_timeout", 3)
    options.setdefault("keepalives_idle", 10)
    options.setdefault("keepalives_interval", 5)
    options.setdefault("keepalives_count", 3)
    options.setdefault("tcp_user_timeout", 20_000)  # milliseconds
    # Send parameters separately instead of writing them into the statement: a tenth less work for the client.
    options.setdefault("server_side_binding", True)
    options["direct"] = name if direct else ""
    return database


# --- Constants: no variable changes them, except for processes of the tests (tests/kit/settings.py) ---
# Seconds after which a statement's connection is closed. Above 5 s, the API answers too late while the server
# is frozen.
DATABASE_TIMEOUT = 4.0
REPLICA_TIMEOUT = 2.0  # the same for a replica; the primary answers after it
# The same for the tables' owner, and for commands that read whole tables.
DATABASE_MAINTENANCE_TIMEOUT = 3600.0
AMBIGUOUS_HOLD_SECONDS = 120.0  # how long an e-mail whose answer was lost waits for the provider's webhook
BREAKER_OPEN_SECONDS = 30.0  # between two waiting e-mails that probe an open breaker
IDEMPOTENCY_DAYS = 7
PROCESSED_EVENT_DAYS = 30  # how long the inbox remembers an event
PARTITION_GRACE_DAYS = 7  # how long a detached table is kept

try:
    # --- The process ---------------------------------------------------------------------------
    DEBUG = env.bool("DEBUG", False)
    SECRET_KEY = raw.str("SECRET_KEY", "not-secret-debug-only" if DEBUG else None)
    # The addresses and networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted.
    TRUSTED_PROXIES: list[str] = env.list("TRUSTED_PROXIES", [], validate=networks)
    ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
    HTTPS = env.bool("HTTPS", not DEBUG)  # cookies only over TLS, HSTS; a local run turns it off
    LOG_LEVEL = env.str(
        "LOG_LEVEL", "INFO", validate=name_of(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"])
    )
    LOG_FILE = env.str("LOG_FILE", "", validate=appendable)
    LOG_FORMAT = env.str(
        "LOG_FORMAT",
        "console" if sys.stderr.isatty() else "json",
        validate=name_of(["json", "console"]),
    )

    # --- Storage and broker --------------------------------------------------------------------
    DATABASES = {
        "default": _database("DATABASE_URL", timeout=DATABASE_TIMEOUT),
        # The application's role, not through a pooler, for advisory locks that outlive a transaction.
        "direct": _database(
            "DIRECT_DATABASE_URL",
            env.str("DATABASE_URL", ""),
            timeout=DATABASE_TIMEOUT,
            max_age=None,
            direct=True,
        ),
        # The tables' owner, not through a pooler, to create, detach and drop partitions.
        "owner": _database(
            "PARTITION_DATABASE_URL",
            env.str("DATABASE_URL", ""),
            timeout=DATABASE_MAINTENANCE_TIMEOUT,
            max_age=None,
            direct=True,
        ),
    }
    if env.str("REPLICA_DATABASE_URL", ""):  # read-only standbys
        DATABASES["replica"] = _database(
            "REPLICA_DATABASE_URL", timeout=REPLICA_TIMEOUT, prefer="prefer-standby"
        ) | {"CONN_HEALTH_CHECKS": False}  # each read checks its connection first
        DATABASE_ROUTERS = ["runtime.database.replica.Router"]
    for _alias in {*DATABASES} - {"default"}:
        DATABASES[_alias]["TEST"] = {"MIRROR": "default"}
    REDIS_URL = env.str(
        "REDIS_URL", validate=validate.Regexp(r"^(redis|rediss|unix)://", error="must be a redis:// URL")
    )

    # --- Delivery ------------------------------------------------------------------------------
    NOTIFY_ON: list[str] = env.list("NOTIFY_ON", DEFAULT_EMAILS, validate=names_of(EMAILS))
    FAST_PATH = env.bool("FAST_PATH", True)
    POLL_INTERVAL = env.float("POLL_INTERVAL", 60.0, validate=positive)
    POLL_BATCH_SIZE = env.int("POLL_BATCH_SIZE", 100, validate=validate.Range(min=1, max=5000))
    # Seconds before each retry. If set, they replace MAX_RETRIES and the two settings of the backoff.
    RETRY_DELAYS: list[float] = env.list("RETRY_DELAYS", [], subcast=float, validate=delays)
    _retries = env.int("MAX_RETRIES", 3, validate=validate.Range(min=0, max=1000))
    MAX_RETRIES = len(RETRY_DELAYS) or _retries
    RETRY_BACKOFF_BASE = env.float("RETRY_BACKOFF_BASE", 30.0, validate=positive)
    RETRY_BACKOFF_CAP = env.float("RETRY_BACKOFF_CAP", 3600.0, validate=positive)
    LEASE_SECONDS = env.float("LEASE_SECONDS", 300.0, validate=positive)
    EMAIL_MAX_AGE_HOURS = env.int("EMAIL_MAX_AGE_HOURS", 72, validate=validate.Range(min=1, max=8760))
    EMAIL_RATE_LIMIT = env.float("EMAIL_RATE_LIMIT", 100.0, validate=not_negative)  # 0: no limit
    API_RATE_LIMIT = env.int(
        "API_RATE_LIMIT", 0, validate=not_negative
    )  # requests per second and token; 0: no limit
    EMAIL_CONCURRENCY = env.int("EMAIL_CONCURRENCY", 32, validate=validate.Range(min=1, max=1000))
    EMAIL_CONNECT_TIMEOUT = env.float("EMAIL_CONNECT_TIMEOUT", 3.0, validate=positive)
    EMAIL_READ_TIMEOUT = env.float("EMAIL_READ_TIMEOUT", 10.0, validate=positive)
    DEFAULT_FROM_EMAIL = env.str("DEFAULT_FROM_EMAIL", "orders@example.com", validate=email_address)
    REPLY_TO_EMAIL = env.str("REPLY_TO_EMAIL", "", validate=email_address_or_empty)
    STUCK_ORDER_HOURS = env.int("STUCK_ORDER_HOURS", 24, validate=validate.Range(min=1, max=8760))
    if LEASE_SECONDS <= EMAIL_CONNECT_TIMEOUT + EMAIL_READ_TIMEOUT:
        raise ImproperlyConfigured(
            "LEASE_SECONDS must be longer than EMAIL_CONNECT_TIMEOUT + EMAIL_READ_TIMEOUT, "
            "or no send could finish within its lease."
        )

    # --- Events --------------------------------------------------------------------------------
    EVENT_TRANSPORT = env.str("EVENT_TRANSPORT", "redis", validate=name_of(["redis", "kafka"]))
    EVENT_SOURCE = env.str("EVENT_SOURCE", "order-service")
    # The systems with their own orders whose order events are accepted.
    ORDER_SOURCES: list[str] = env.list("ORDER_SOURCES", [], validate=names_of_systems)
    if EVENT_SOURCE in ORDER_SOURCES:
        raise ImproperlyConfigured("ORDER_SOURCES must not name EVENT_SOURCE, which is this system.")
    # The keys of the secrets of shops that connect themselves: the first encrypts, and all decrypt.
    CONNECTION_KEY: list[str] = env.list("CONNECTION_KEY", [], validate=long_keys)
    CONNECTIONS_PRIVATE = env.bool("CONNECTIONS_PRIVATE", False)  # shops may have private addresses
    EVENT_COMMANDS = env.bool("EVENT_COMMANDS", False)  # accept order.command.*, notification.command.*
    EVENT_STREAM_LENGTH = env.int("EVENT_STREAM_LENGTH", 1_000_000, validate=at_least_one)
    # The number of Redis replicas that must have an event before it counts as published.
    EVENT_REPLICAS = env.int("EVENT_REPLICAS", 0, validate=not_negative)
    EMAIL_EVENTS = env.bool("EMAIL_EVENTS", False)  # publish notification.email.sent.v1, .dead_lettered.v1
    KAFKA_BOOTSTRAP_SERVERS = env.str("KAFKA_BOOTSTRAP_SERVERS", "")
    if EVENT_TRANSPORT == "kafka" and not KAFKA_BOOTSTRAP_SERVERS:
        raise ImproperlyConfigured("EVENT_TRANSPORT=kafka needs KAFKA_BOOTSTRAP_SERVERS, such as kafka:9092.")
    # librdkafka's own options as a JSON object. It checks them when the process starts.
    KAFKA_OPTIONS = parse_options("KAFKA_OPTIONS", env.str("KAFKA_OPTIONS", ""))

    # --- Retention -----------------------------------------------------------------------------
    # Days for which a partition stays attached after its last row, by table.
    HOT_DAYS = {
        "email_notifications": env.int("EMAIL_HOT_DAYS", 30, validate=at_least_one),
        "outbox_events": env.int("EVENT_HOT_DAYS", 7, validate=at_least_one),
    }
    # Days after its last row until a file replaces a partition, by table. No file replaces a day of events.
    WARM_DAYS = {"email_notifications": env.int("EMAIL_WARM_DAYS", 730, validate=at_least_one)}
    ARCHIVE_YEARS = env.int("ARCHIVE_YEARS", 7, validate=at_least_one)
    _archive = env.str("ARCHIVE_URL", "") or (BASE_DIR / "var" / "archive").as_uri()
    try:
        ARCHIVE = parse_archive(_archive)
    except ValueError as error:
        raise ImproperlyConfigured(f"ARCHIVE_URL is not the URL of a folder or bucket. {error}") from None
    PRIVACY_KEY = raw.str("PRIVACY_KEY", "") or SECRET_KEY  # for the hashes of addresses

    # --- Providers -----------------------------------------------------------------------------
    # Each provider declares its own settings; docs/guides/providers.md lists them.
    ANYMAIL: dict[str, Any] = {
        "REQUESTS_TIMEOUT": (EMAIL_CONNECT_TIMEOUT, EMAIL_READ_TIMEOUT),
        "IGNORE_RECIPIENT_STATUS": True,
    }
    _given = registry.read_settings(env)
    for _name, _value in _given.by_name.items():
        if _name.endswith("_API_URL") and _value:
            env.str(_name, _value, validate=web_address)
    ANYMAIL |= _given.anymail
    globals().update(_given.django)
    EMAIL_PROVIDERS: list[str] = env.list(
        "EMAIL_PROVIDERS", [], validate=names_of(list(registry.declarations()))
    ) or registry.default_providers(_given, debug=DEBUG)
    WEBHOOKS_UNSIGNED = env.bool("WEBHOOKS_UNSIGNED", False)  # accept posts to a webhook without a key
    EMAIL_TIMEOUT = EMAIL_CONNECT_TIMEOUT  # Django's setting; our backend uses EMAIL_READ_TIMEOUT to read

    # --- The shop, as its customers see it -----------------------------------------------------
    SHOP_NAME = env.str("SHOP_NAME", "Example Shop")
    SHOP_ADDRESS = env.str("SHOP_ADDRESS", "Example Shop, 1 Market Street, Springfield")
    SHOP_URL = env.str("SHOP_URL", "https://shop.example.com", validate=web_address)
    EMAIL_TEMPLATES_DIR = env.str("EMAIL_TEMPLATES_DIR", "")  # its files replace those of templates/emails

    # --- Who may come in -----------------------------------------------------------------------
    # The second factor of everybody who logs in by password.
    REQUIRE_MFA = env.bool("REQUIRE_MFA", not DEBUG)
    PASSWORD_LOGIN = env.str("PASSWORD_LOGIN", "")  # if set, this user alone logs in by password
    OIDC_ISSUER = env.str("OIDC_ISSUER", "", validate=issuer)
    OIDC_CLIENT_ID = env.str("OIDC_CLIENT_ID", "")
    OIDC_CLIENT_SECRET = env.str("OIDC_CLIENT_SECRET", "")
    OIDC_GROUPS_CLAIM = env.str("OIDC_GROUPS_CLAIM", "groups")
    # By a group of the provider: a group of ours, and the shops to which its members are bound.
    OIDC_GROUP_MAP = parse_group_map("OIDC_GROUP_MAP", env.str("OIDC_GROUP_MAP", ""))
    if OIDC_ISSUER and not (OIDC_CLIENT_ID and OIDC_CLIENT_SECRET and OIDC_GROUP_MAP):
        raise ImproperlyConfigured(
            "OIDC_ISSUER needs OIDC_CLIENT_ID, OIDC_CLIENT_SECRET and OIDC_GROUP_MAP, such as"
            " shop-support=support@tea-shop+coffee-shop,shop-ops=operator@*."
        )

    # --- Monitoring ----------------------------------------------------------------------------
    METRICS_TOKEN = env.str("METRICS_TOKEN", "")
    # The port on which each process serves its metrics; 0: none. The web also has /metrics on its own port.
    METRICS_PORT = env.int("METRICS_PORT", 0, validate=validate.Range(min=0, max=65535))
    METRICS_HOST = env.str("METRICS_HOST", "")  # the address to listen on; "": all
    SENTRY_DSN = env.str("SENTRY_DSN", "")
    # Each process logs these when it starts. They stop `check --deploy` and `migrate`.
    UNKNOWN_VARIABLES = find_unknown(environ=os.environ, names={*env.dump(), *raw.dump()})
except ValueError as error:  # EnvError, or an unreadable file of NAME_FILE
    raise ImproperlyConfigured(str(error)) from error

# --- Django ------------------------------------------------------------------------------------
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
INSTALLED_APPS = [
    "operations.apps.SiteConfig",  # django.contrib.admin
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django_celery_beat",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "axes",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.mfa",
    "runtime",
    "web",
    "retention",
    "events",
    "notifications",
    "outbox",
    "orders",
    "shop_connections",
    "operations",
]
MIDDLEWARE = [
    "web.api.correlation.CorrelationMiddleware",
    "config.headers.strict_headers",
    "web.front.admission.refusals_first",
    "operations.probes.probes_first",
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "config.pages.skip_page_middleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "web.login.sessions.guard_session",
    "axes.middleware.AxesMiddleware",
    "web.admin.zones.in_zone_of_browser",
    "config.pages.remember_inner",
]
# After five wrong passwords, a name and address may not log in for five minutes, and after
# web.admin.logins.LIMIT_OF_ADDRESS of any names, the address may not. A refused try is not counted and stores
# no row, so nobody can fill the table or make a pause longer.
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "web.admin.rights.BindingBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AXES_HANDLER = "web.admin.logins.LoginFailures"
AXES_FAILURE_LIMIT = 5
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_COOLOFF_TIME = dt.timedelta(minutes=5)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_CLIENT_IP_CALLABLE = "web.admin.logins.counted_address"
AXES_ENABLE_ADMIN = False
AXES_DISABLE_ACCESS_LOG = True
#: django-axes' defaults, and the page to open after a login, because the address of a search has a customer's
#: address.
AXES_SENSITIVE_PARAMETERS = ["username", "ip_address", "next"]
AXES_VERBOSE = False
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        # A platform's folder has the templates of its steps: woocommerce/webhook.html.
        "DIRS": [BASE_DIR / "templates", BASE_DIR / "shop_connections"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    },
    {
        "NAME": "emails",
        "BACKEND": "django.template.backends.jinja2.Jinja2",
        "DIRS": [*filter(None, [EMAIL_TEMPLATES_DIR]), BASE_DIR / "templates" / "emails"],
        "OPTIONS": {"environment": "notifications.content.template_files.make_environment"},
    },
]
PASSWORD_HASHERS = ["web.admin.logins.OneAtATime"]
AUTH_PASSWORD_VALIDATORS: list[dict[str, Any]] = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "web.login.passwords.NoCommonWord"},
    {"NAME": "web.login.passwords.NoNameOfOurs"},
]
LOGIN_URL, LOGIN_REDIRECT_URL = "admin:login", "admin:index"
SESSION_COOKIE_AGE = 12 * 3600  # web.login.sessions ends sessions earlier
# django-allauth, of which web.login uses the second factor and OpenID Connect. It sends no e-mail.
ACCOUNT_ADAPTER = "web.login.oidc.AccountAdapter"
ACCOUNT_EMAIL_VERIFICATION = SOCIALACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_RATE_LIMITS = {"login_failed": None}  # django-axes counts wrong codes
ACCOUNT_UNIQUE_EMAIL = False  # several people may confirm a shared mailbox (web.login.own_address)
SOCIALACCOUNT_ADAPTER = "web.login.oidc.SocialAdapter"
SOCIALACCOUNT_REQUESTS_TIMEOUT = 3
MFA_ADAPTER = "web.login.factors.EncryptedFactors"
MFA_FORMS = {
    "activate_totp": "web.login.factors.FirstCodeForm",
    "add_webauthn": "web.login.factors.NewPasskeyForm",
    "authenticate": "web.login.factors.CodeForm",
    "authenticate_webauthn": "web.login.factors.PasskeyForm",
}
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_RECOVERY_CODES_SHOW_ONCE = True
MFA_TOTP_TOLERANCE = 1  # codes of 30 s before and after
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = DEBUG
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
FORMAT_MODULE_PATH = "web.admin"
# Those of the e-mails. Each but English has a catalogue in notifications/locale. The admin is in English.
LANGUAGES = [
    ("en", "English"),
    ("de", "Deutsch"),
    ("fr", "Français"),
    ("es", "Español"),
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "archive": ARCHIVE,
}
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "var" / "static"
WHITENOISE_USE_FINDERS = True  # local runs need no collectstatic; the image runs it
APPEND_SLASH = True  # for the admin; no API path has one
DATA_UPLOAD_MAX_MEMORY_SIZE = 1_000_000
# The domain's owner decides on HSTS for subdomains and its preload list (W005, W021). The proxy redirects to
# HTTPS (W008). The admin frames its e-mail preview (W019).
SILENCED_SYSTEM_CHECKS = ["anymail.W003", "security.W005", "security.W008", "security.W019", "security.W021"]
LOGGING_CONFIG = "config.logs.configure"
LOGGING = {"level": LOG_LEVEL, "format": LOG_FORMAT, "file": LOG_FILE}
if SENTRY_DSN:
    try:
        sentry.init(dsn=SENTRY_DSN)
    except BadDsn as error:
        raise ImproperlyConfigured(f"SENTRY_DSN is not a DSN: {error}.") from error

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_SSL_REDIRECT = False  # the proxy redirects; health checks use plain HTTP
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if TRUSTED_PROXIES else None
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "SAMEORIGIN"  # the admin frames the e-mail preview, sandboxed

# --- API ---------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["web.api.authentication.TokenAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["web.api.authentication.HasScope"],
    "DEFAULT_THROTTLE_CLASSES": ["web.api.throttle.TokenThrottle"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["web.api.bodies.StrictJSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "web.api.problems.problem_response",
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": None,
    "URL_FORMAT_OVERRIDE": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "orderpost",
    "DESCRIPTION": "Order status changes, the e-mails that they owe and the events that they cause.",
    "VERSION": version(),
    "EXTERNAL_DOCS": {"description": "JSON Schemas of events and commands", "url": "/api/schemas"},
    "OAS_VERSION": "3.1.0",
    # Orders first: a reader who has just come wants to place one.
    "TAGS": [{"name": "orders"}, {"name": "notifications"}, {"name": "events"}],
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_AUTHENTICATION": [],
    "SERVE_PERMISSIONS": [],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    # No validatorUrl: the badge would send a request to a server on the internet.
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "persistAuthorization": True, "validatorUrl": None},
    "ENUM_NAME_OVERRIDES": {
        "ChargeKind": "orders.fields.CHARGE_KINDS",
        "OrderStatus": "orders.models.Order.Status",
        "NotificationStatus": "notifications.states.transitions.Status",
    },
}

# --- Celery (read by config.celery under the prefix CELERY_; see docs/adr/0029) ------------
CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_DEFAULT_QUEUE = "orderpost:tasks"  # "celery" would be any application's
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False  # PostgreSQL has the rows: a lost wake-up delays them until the next poll
CELERY_TASK_PUBLISH_RETRY = False
# Concerns no task of ours. If it is not set, Celery warns in ten lines at each lost connection.
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # a long outage must not end a worker
CELERY_BROKER_CHANNEL_ERROR_RETRY = True  # nor must the errors of a primary that became a replica
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "max_retries": 0,
    "socket_connect_timeout": 0.25,
    "socket_timeout": 0.5,
    "ack_emulation": False,  # do not keep a copy of each message in Redis until it is acknowledged
}
CELERY_WORKER_POOL = "threads"
CELERY_WORKER_CONSUMER = "config.worker:WorkerConsumer"
CELERY_WORKER_CONCURRENCY = 4  # a drain has its own threads; these also run polls and jobs
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_DB_REUSE_MAX = 1000
CELERY_BEAT_SCHEDULER = "config.beat:Scheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 5
DJANGO_CELERY_BEAT_TZ_AWARE = True
