"""A bulk job stops before its next batch when its owner may not do the same by hand any more."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, Permission, User

from tests.kit.jobs import job_after, run_jobs, started
from tests.kit.mails import make_mails, statuses
from tests.kit.people import make_user
from tests.kit.words import BulkJob, restart_job, run_batch

pytestmark = pytest.mark.django_db
PERMISSION = "notifications.resend_emailnotification"


@pytest.fixture
def ann() -> User:
    """Make a member of a group that may resend."""
    group = Group.objects.create(name="resends")
    group.permissions.set(Permission.objects.filter(codename="resend_emailnotification"))
    user = make_user("ann")
    user.groups.add(group)
    return user


def begun(user: User) -> BulkJob:
    """Start a job on 50 e-mails, and do its first batch of 20."""
    make_mails(50, status="dead_lettered")
    job = started(user=user)
    assert run_batch() is True
    assert statuses() == {"pending": 20, "dead_lettered": 30}
    return job


def test_a_job_of_a_member_of_a_group_with_the_permission_is_done(ann):
    job = job_after(begun(ann))
    assert (job.state, job.done_count, job.error) == ("done", 50, "")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda ann: ann.delete(), "its user was deleted"),
        (lambda ann: User.objects.update(is_active=False), "its user ann is not active any more"),
        (lambda ann: ann.groups.clear(), f"its user ann has no permission {PERMISSION} any more"),
        (
            lambda ann: Group.objects.get(name="resends").permissions.clear(),
            f"its user ann has no permission {PERMISSION} any more",
        ),
    ],
    ids=["deleted", "deactivated", "left the group", "group lost the permission"],
)
def test_a_job_stops_before_its_next_batch_when_its_user_loses_the_right_and_says_why(ann, change, reason):
    job = begun(ann)
    change(ann)
    job = job_after(job)
    assert (job.state, job.error, job.done_count, job.username) == ("stopped", reason, 20, "ann")
    assert job.finished_at is not None
    assert statuses() == {"pending": 20, "dead_lettered": 30}
    User.objects.update(is_active=True, is_superuser=True)
    run_jobs()
    assert statuses()["dead_lettered"] == 30


def test_a_failed_job_that_is_restarted_stops_if_its_user_lost_the_right(ann):
    job = begun(ann)
    BulkJob.objects.fail(id=job.id, error="a defect")
    User.objects.update(is_active=False)
    assert restart_job(id=job.id) is True
    job = job_after(job)
    assert (job.state, job.error) == ("stopped", "its user ann is not active any more")
    assert statuses() == {"pending": 20, "dead_lettered": 30}
