"""The names of the product that tests say. A package that moves changes this file, and not the tests.

A name that only one test needs is imported from its module there.
"""

from __future__ import annotations

from notifications import by_hand, tasks, webhooks
from notifications import services as mail_services
from notifications.bulk_actions import RESEND
from notifications.delivery import drain, process, pulse
from notifications.delivery.process import Drain, Drained
from notifications.failure_causes import dead_causes
from notifications.models import EmailNotification, Suppression
from notifications.providers import session
from notifications.providers.base import formatted_address, message_id
from notifications.providers.dialect import Dialect
from notifications.providers.registry import declarations
from notifications.providers.sendgrid import make_key
from notifications.providers.sendgrid.sandbox import sign
from notifications.providers.sending import PROVIDERS
from notifications.rendering import event_types, render_email
from notifications.services import give_up, resend
from notifications.suppressions import SuppressionReason, suppress
from notifications.template_checks import SAMPLE, check_templates
from orders import changes, services
from orders.api import inbound
from orders.bodies import OrderBody
from orders.corrections import send_copy
from orders.emails import email_context
from orders.events import EMAILS, EVENTS
from orders.inbound import payments_and_stock
from orders.inbound.external import own_id
from orders.inbound.payments_and_stock import HANDLERS, NAME, subscribed
from orders.models import NEWEST_FIRST, Order
from orders.privacy import erasure, person_export
from orders.privacy import jobs as person_jobs
from orders.privacy.erasure import erase_person
from orders.privacy.person_export import export_person
from orders.render_again import render_again
from orders.services import (
    cancel_order,
    complete_order,
    confirm_order,
    fail_payment,
    pay_order,
    place_order,
    refund_order,
)
from orders.timeline import read_timeline
from orders.transitions import Action, InvalidTransition, RefundExceedsBalance, allowed_actions
from outbox import bulk, conditions, facts
from outbox.addresses import NotAnAddress, read_address
from outbox.admin.shared.csv import CHUNK
from outbox.api.operations import PROBES
from outbox.api.problem_types import find_types
from outbox.api.proxies import mask_address
from outbox.apps import make_groups
from outbox.database.clock import read_database_time
from outbox.database.ids import id_floor, id_time, new_id
from outbox.database.partitioned import PartitionedModel
from outbox.database.postgres.base import DatabaseWrapper
from outbox.database.postgres.cursor import Prepared
from outbox.delivery.gate import breaker
from outbox.delivery.gate.breaker import Breaker, Permit, Rules, State
from outbox.delivery.gate.gate import Capacity, Gate
from outbox.delivery.gate.neighbours import EACH_SIDE, Neighbours
from outbox.delivery.rows.decision import RetryPolicy, decide
from outbox.delivery.rows.outcomes import LEASE_EXPIRED, TEXT_LIMIT, Outcome, Status, Verdict
from outbox.events import pause_watch, transports
from outbox.events.consuming import cdc, cdc_lag, consumer, inbox
from outbox.events.consuming.consumer import EventConsumer
from outbox.events.consuming.envelope import Envelope, Rejected
from outbox.events.consuming.inbox import replay_next
from outbox.events.publishing import relay
from outbox.events.publishing.publish import shard_of, write_event
from outbox.events.publishing.relay import Relay
from outbox.events.schemas import find_schemas, read_schema
from outbox.events.transports import (
    BrokerAway,
    Message,
    Received,
    Refused,
    TopicUnavailable,
    consumer_lags,
    kafka,
)
from outbox.events.transports.redis import Publisher
from outbox.management.commands import keep_partitions
from outbox.models import (
    SHARDS,
    ApiToken,
    BulkJob,
    DetachedPartition,
    Erasure,
    Heartbeat,
    IdempotencyKey,
    InboundDeadLetter,
    OutboxEvent,
    Pause,
    ProcessedEvent,
    TrafficSum,
)
from outbox.models import jobs as job_times
from outbox.models.jobs import RETRY_BASE
from outbox.privacy import ERASED, ERASED_ADDRESS, AddressGiven, address_hash, key_hash
from outbox.process import loop
from outbox.process.redis_client import make_client
from outbox.retention import purge, rollover
from outbox.retention.archives import archive, restore
from outbox.retention.archives.manifest import Manifest
from outbox.retention.partitions import detach, locks, partitions
from outbox.retention.partitions.catalogue import has_table
from outbox.retention.partitions.listing import list_partitions
from outbox.retention.partitions.locks import exclusive_lock
from outbox.retention.partitions.partitions import Partition, attached
from outbox.telemetry import context, health, metrics
from outbox.telemetry.context import Context
from outbox.telemetry.metrics import REGISTRY
from outbox.telemetry.release import version
from outbox.traffic import minutes
from outbox.traffic.summed import Window
