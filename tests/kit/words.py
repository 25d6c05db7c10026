"""The names of the product that tests say. A package that moves changes this file, and not the tests.

A name that only one test needs is imported from its module there.
"""

from __future__ import annotations

from events import pause_watch, transports
from events.consuming import consumer, inbox
from events.consuming.consumer import EventConsumer
from events.consuming.envelope import Envelope, Rejected
from events.consuming.inbox import replay_next
from events.models import SHARDS, DomainEvent, InboundDeadLetter, ProcessedEvent
from events.publishing import relay
from events.publishing.relay import Relay
from events.publishing.write import shard_of, write_event
from events.schemas.schemas import find_schemas, read_schema
from events.transports import (
    BrokerAway,
    Message,
    MessageRefused,
    Received,
    TopicUnavailable,
    consumer_lags,
    kafka,
)
from events.transports.redis import RedisPublisher
from notifications import services as mail_services
from notifications.bulk_actions import RESEND, email_actions
from notifications.changes import manual_actions
from notifications.changes.restored import mark_sent
from notifications.changes.settle import accept, set_aside, set_aside_replaced, settle
from notifications.content.rendering import render_email
from notifications.content.template_checks import check_templates
from notifications.content.template_files import event_types
from notifications.failure_causes import dead_causes
from notifications.models import EmailNotification, Suppression
from notifications.providers.base import message_id
from notifications.providers.dialect import Dialect
from notifications.providers.headers import formatted_address
from notifications.providers.registry import declarations
from notifications.providers.sendgrid import make_key
from notifications.providers.sendgrid.sandbox import sign
from notifications.providers.sending import PROVIDERS
from notifications.services import give_up, resend
from notifications.states import transitions
from notifications.states.claimed import Claimed
from notifications.states.outcomes import (
    LEASE_EXPIRED,
    TEXT_LIMIT,
    EmailPolicy,
    Outcome,
    Verdict,
    decide_status,
)
from notifications.states.transitions import Status
from notifications.suppressions import SuppressionReason, suppress
from operations import pauses
from operations.apps import make_groups
from operations.probes import PROBES
from orders import services as order_services
from orders import subscriptions
from orders.api import events_in as inbound
from orders.bodies import OrderBody
from orders.corrections import send_copy
from orders.emails import SAMPLE, email_context
from orders.events import EMAILS, EVENTS
from orders.inbound.external import our_id
from orders.models import NEWEST_FIRST, Order
from orders.privacy import erasure
from orders.privacy import export as person_export
from orders.privacy import jobs as person_jobs
from orders.privacy.erasure import erase_person
from orders.privacy.export import export_person
from orders.render_again import render_again
from orders.services import RefundExceedsBalance
from orders.subscriptions import HANDLERS, NAME, subscribed
from orders.timeline import read_timeline
from orders.transitions import Action, InvalidTransition, allowed_actions
from outbox import cdc, drain, tasks
from outbox.claim import claim, claim_untried, next_due_in, recover
from outbox.drain import Drain, DrainResult
from outbox.gate import breaker
from outbox.gate.breaker import Breaker, BreakerState, Rules
from outbox.gate.gate import Capacity, Gate
from retention import purge, rollover
from retention.cold_files import archive, restore
from retention.cold_files.manifest import Manifest
from retention.management.commands import keep_partitions
from retention.models import DetachedPartition, Erasure
from retention.partitioned import PartitionedModel
from retention.partitions import detach, locks, partitions
from retention.partitions.catalogue import has_table
from retention.partitions.listing import list_partitions
from retention.partitions.locks import exclusive_lock
from runtime import conditions
from runtime.addresses import NotAnAddress, read_address
from runtime.charts import sums as minutes
from runtime.charts.sums import Window
from runtime.database.away import is_lock_timeout
from runtime.database.clock import read_database_time
from runtime.database.ids import id_floor, id_time, new_id
from runtime.database.partitions import Partition, attached
from runtime.database.postgres.base import DatabaseWrapper
from runtime.database.postgres.cursor import Prepared
from runtime.jobs.actions import ACTIONS
from runtime.jobs.run import run_batch, run_until_ended, wake_for_unfinished
from runtime.jobs.start import restart_job, start_job
from runtime.jobs.start import waker as job_waker
from runtime.models import BulkJob, Heartbeat, Pause, TrafficSum
from runtime.models import jobs as job_times
from runtime.models.jobs import RETRIES
from runtime.personal_data import ERASED, ERASED_ADDRESS, AddressGiven, address_hash, hashes_in, key_hash
from runtime.process import loop
from runtime.process.redis_client import make_client
from runtime.telemetry import context, health, metrics
from runtime.telemetry.context import Context
from runtime.telemetry.metrics import REGISTRY
from runtime.telemetry.release import version
from web import heartbeat
from web.admin.csv import CHUNK
from web.api.problem_types import find_types
from web.models import ApiToken, IdempotencyKey, declared_scopes
from web.proxies import mask_address
