"""The settings of the peers' project, whose database is on the server of DATABASE_URL."""

import os
from warnings import simplefilter

import dj_database_url
from anymail.exceptions import AnymailNotSupportedWarning

simplefilter("ignore", AnymailNotSupportedWarning)

SECRET_KEY = "not-secret-benchmarks-only"
DATABASES = {
    "default": {
        **dj_database_url.parse(os.environ["DATABASE_URL"]),
        "NAME": "peers",
        "CONN_MAX_AGE": 600,
        "CONN_HEALTH_CHECKS": True,
    }
}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "post_office",
    "benchmarks.peers",
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
DEFAULT_FROM_EMAIL = "orders@example.com"
SILENCED_SYSTEM_CHECKS = ["anymail.W003"]
LOGGING = {"version": 1, "disable_existing_loggers": False, "root": {"level": "ERROR", "handlers": []}}

ANYMAIL = {
    "SENDGRID_API_KEY": os.environ["SENDGRID_API_KEY"],
    "SENDGRID_API_URL": os.environ["SENDGRID_API_URL"],
    "REQUESTS_TIMEOUT": (3, 10),
    "IGNORE_RECIPIENT_STATUS": True,
}
POST_OFFICE = {
    "BACKENDS": {"default": "anymail.backends.sendgrid.EmailBackend"},
    "BATCH_SIZE": 1000,
    "THREADS_PER_PROCESS": int(os.environ.get("PEER_THREADS", "20")),
    "LOG_LEVEL": 1,  # only failures, which saves a row for each mail
}

CELERY_BROKER_URL = os.environ["REDIS_URL"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_POOL = "threads"
CELERY_WORKER_CONCURRENCY = int(os.environ.get("PEER_THREADS", "20"))
CELERY_WORKER_PREFETCH_MULTIPLIER = 4
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_DB_REUSE_MAX = 1000
