"""The executor: from a claim to a call, and from its end to a change in the store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from poolhand.contract import Change, Claim
from poolhand.durable.calls.call_record import (
    CALL,
    CallRecord,
    bound,
    bound_to,
    read_call_record,
    record_of,
    write_call_record,
)
from poolhand.durable.calls.task_registry import TaskCode, TaskRegistry
from poolhand.durable.worker.executor import (
    MOST_REFUSED,
    AttemptEnd,
    ClosureCall,
    Executor,
    PreparedClaim,
    Unrunnable,
    crashed,
    hand_back,
    is_own_loss,
    stopped,
    unwritable,
)
from poolhand.errors import BadSignature, JobLost, RetryLater, Undecodable, UsageError
from poolhand.rules.explain import home_cause
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.outcome import Cancelled, Failed, Retry, Snoozed
from poolhand.runtime import Identity
from poolhand.wire.envelope import KeyRing
from poolhand.wire.payload import Wire

AT = datetime(2030, 1, 1, tzinfo=UTC)
END = AttemptEnd(AT, 2.0, 0.0)
HOME = ("host", "boot", 7, "1")


def gone(home: Identity, id: str) -> bool:
    """Report every process of a closure as gone."""
    return False


def add(number: int) -> int:
    return number + 1


CODE = TaskCode("add", add, Wire())
CODES = TaskRegistry()
CODES.add(CODE)


def claim(record: CallRecord | bytes | None = None, **fields: Any) -> Claim:
    job = Job(
        id="job-1",
        pool="chat",
        pool_id="pool-1",
        status=Status.RUNNING,
        submitted_at=AT,
        name="add",
        **{"attempts": 1, **fields},
    )
    if record is None:
        record = CallRecord("add", CODE.pack((4,), {}), record_of(Retry(attempts=3, jitter=0.0)))
    return Claim(job, record if isinstance(record, bytes) else write_call_record(record), 7)


def prepared(record: CallRecord | bytes | None = None, **fields: Any) -> PreparedClaim:
    ready = Executor(CODES).prepare(claim(record, **fields), gone)
    assert isinstance(ready, PreparedClaim)
    return ready


def unrunnable(record: CallRecord | bytes) -> Unrunnable:
    found = Executor(CODES).prepare(claim(record), gone)
    assert isinstance(found, Unrunnable)
    return found


def test_a_call_record_survives_being_stored() -> None:
    retry = Retry(attempts=3, give_up_on=(KeyError, "a.b.C"))
    record = CallRecord("add", b"x", record_of(retry), 3.0, 2.0, "thread", False, True, HOME)
    found = read_call_record(write_call_record(record), "job-1")
    assert found == record
    assert found.policy == Retry(attempts=3, give_up_on=("KeyError", "a.b.C"))
    assert CallRecord("add", b"").policy is None


@pytest.mark.parametrize("data", [b"", b"\xff", b"{}", msgspec.msgpack.encode([1])], ids=repr)
def test_undecodable_bytes_are_reported_with_the_job(data: bytes) -> None:
    with pytest.raises(Undecodable, match="the call record of job job-1 cannot be read"):
        read_call_record(data, "job-1")


def test_a_claim_becomes_a_call() -> None:
    ready = prepared()
    assert ready.call() == 5
    assert (ready.code, ready.alone) == (CODE, False)


def test_a_suspect_is_prepared_to_run_alone() -> None:
    assert not prepared(crashes=1).alone
    assert prepared(crashes=2).alone


def test_a_job_of_an_unregistered_task_is_parked_uncharged() -> None:
    unknown = claim(CallRecord("elsewhere", b""))
    change = Executor(CODES).prepare(unknown, gone)
    assert isinstance(change, Change)
    assert (change.job.status, change.job.waits_for) == (Status.SCHEDULED, "task:elsewhere")
    assert (change.job.attempts, change.job.run_at, change.wait) == (
        0,
        None,
        None,
    )


def test_the_causes_of_an_executor_follow_the_registered_tasks() -> None:
    codes = TaskRegistry()
    executor = Executor(TaskRegistry(codes))
    assert executor.causes() == frozenset()
    codes.add(TaskCode("later", add, Wire()))
    assert executor.causes() == {"task:later", "call:*/later"}


def test_a_job_with_one_attempt_runs_alone_after_its_first_crash() -> None:
    record = CallRecord("add", CODE.pack((4,), {}))
    assert not prepared(record).alone
    assert prepared(record, crashes=1).alone


def test_a_suspect_that_cannot_run_alone_runs_once_more_and_then_fails() -> None:
    nested = TaskCode("nested", lambda number: number, Wire())
    executor = Executor(TaskRegistry())
    executor.codes.add(nested)
    for retry, crashes, given_up in ((1, 1, False), (1, 2, True), (3, 2, False)):
        record = CallRecord("nested", nested.pack((4,), {}), record_of(Retry(attempts=retry)))
        found = executor.prepare(claim(record, crashes=crashes), gone)
        assert isinstance(found, Unrunnable) is given_up
        if isinstance(found, Unrunnable):
            assert isinstance(found.outcome.error, JobLost)
            assert "define it at the top level of a module" in str(found.outcome.error)


@pytest.mark.parametrize("record", [b"", CallRecord("add", b"junk")], ids=["no record", "no call"])
def test_a_claim_that_cannot_be_decoded_fails_permanently(record: CallRecord | bytes) -> None:
    found = unrunnable(record)
    change = Executor(CODES).settle(found.claim, found.outcome, None, END)
    assert change.job.status is Status.FAILED


def test_a_type_that_raises_while_it_is_decoded_fails_only_its_job() -> None:
    class Hostile(msgspec.Struct):
        number: int

        def __post_init__(self) -> None:
            if self.number == 13:
                raise MemoryError

    def take(value: Hostile) -> None: ...

    take.__annotations__ = {"value": Hostile}
    codes = TaskRegistry()
    codes.add(TaskCode("take", take, Wire()))
    payload = Wire().write(("take", ["value"], {"value": {"number": 13}}), "a call")
    assert isinstance(Executor(codes).prepare(claim(CallRecord("take", payload)), gone), Unrunnable)


def test_a_closure_runs_only_in_the_process_that_submitted_it() -> None:
    executor = Executor(CODES)
    record = CallRecord("<lambda>", b"", closure=True, home=HOME)
    found = executor.prepare(claim(record), gone)
    assert isinstance(found, Unrunnable)
    assert "it existed only in the process that submitted it" in str(found.outcome.error)
    executor.closures["job-1"] = ClosureCall.of(lambda: 9)
    ready = executor.prepare(claim(record), gone)
    assert isinstance(ready, PreparedClaim)
    assert ready.call() == 9
    assert ready.code is None


def test_a_closure_is_parked_while_its_home_may_be_alive() -> None:
    asked: list[object] = []

    def alive(home: Identity, id: str) -> bool:
        asked.append((home, id))
        return True

    record = CallRecord("<lambda>", b"", closure=True, home=HOME)
    change = Executor(CODES).prepare(claim(record, attempts=2), alive)
    assert isinstance(change, Change)
    assert (change.job.status, change.job.attempts, change.wait) == (Status.SCHEDULED, 1, None)
    assert change.job.waits_for == home_cause(HOME)
    assert (change.token, asked) == (7, [(HOME, "job-1")])


def signing(*key_ids: str) -> TaskCode:
    secrets = {key_id: key_id.encode() * 16 for key_id in key_ids}
    return TaskCode("add", add, Wire(ring=KeyRing(secrets, current=key_ids[-1])))


@pytest.mark.parametrize("reader", [signing("old"), TaskCode("add", add, Wire())])
def test_a_call_signed_with_an_unknown_key_is_parked_for_a_worker_that_has_it(
    reader: TaskCode,
) -> None:
    writer, codes, others = signing("old", "new"), TaskRegistry(), TaskRegistry()
    codes.add(reader)
    others.add(writer)
    draft = claim().job
    record = CallRecord("add", b"", run=draft.run)
    payload = writer.pack((4,), {}, bound(CALL, bound_to(draft, record, draft.run)))
    claimed = claim(replace(record, payload=payload))
    change = Executor(codes).prepare(claimed, gone)
    assert isinstance(change, Change)
    assert (change.job.waits_for, change.job.attempts) == ("key:new/add", 0)
    assert change.job.waits_for not in Executor(codes).causes()
    assert change.job.waits_for in Executor(others).causes()
    ready = Executor(others).prepare(claimed, gone)
    assert isinstance(ready, PreparedClaim)
    assert ready.call() == 5


def test_an_altered_call_fails_in_every_worker() -> None:
    codes = TaskRegistry()
    codes.add(signing("old"))
    payload = signing("old").pack((4,), {}, b"something else")
    found = Executor(codes).prepare(claim(CallRecord("add", payload, run="job-1")), gone)
    assert isinstance(found, Unrunnable)
    assert isinstance(found.outcome.error, BadSignature)


def test_a_call_that_does_not_fit_waits_for_the_version_it_was_submitted_to() -> None:
    def wider(number: int, unit: str = "m") -> str:
        return f"{number} {unit}"

    newer, executor = TaskCode("add", wider, Wire()), Executor(CODES)
    record = CallRecord("add", newer.pack((4, "km"), {}), version=newer.version)
    change = executor.prepare(claim(record), gone)
    assert isinstance(change, Change)
    cause = f"call:{newer.version}/add"
    assert (change.job.waits_for, change.job.attempts) == (cause, 0)
    assert executor.refused == {cause}
    assert "call:*/add" in executor.causes()


def refuse(executor: Executor, version: str) -> None:
    """Have an executor read a call that only that version of its task may accept."""
    executor.prepare(claim(CallRecord("add", b"garbage", version=version)), gone)


def test_refused_calls_are_tried_again_when_a_task_is_registered_again() -> None:
    codes = TaskRegistry()
    codes.add(TaskCode("add", add, Wire()))
    executor = Executor(codes)
    refuse(executor, "v1")
    codes.renew(TaskCode("add", add, Wire()))
    assert executor.refused == frozenset()
    refuse(executor, "v2")
    assert executor.refused == {"call:v2/add"}


def test_the_versions_that_were_refused_are_bounded() -> None:
    executor = Executor(CODES)
    for number in range(MOST_REFUSED):
        refuse(executor, f"v{number}")
    assert len(executor.refused) == MOST_REFUSED
    refuse(executor, "latest")
    assert executor.refused == {"call:latest/add"}


@pytest.mark.parametrize("version", [None, TaskCode("add", add, Wire()).version])
def test_a_call_that_its_own_version_cannot_read_fails(version: str | None) -> None:
    executor = Executor(CODES)
    found = executor.prepare(claim(CallRecord("add", b"garbage", version=version)), gone)
    assert isinstance(found, Unrunnable)
    assert isinstance(found.outcome.error, Undecodable)
    assert executor.refused == frozenset()


def test_a_stored_closure_without_a_home_is_lost() -> None:
    old = msgspec.msgpack.encode(["<lambda>", b"", None, None, None, None, True, True])
    assert read_call_record(old, "job-1") == CallRecord("<lambda>", b"", closure=True)
    found = Executor(CODES).prepare(claim(old), lambda home, id: True)
    assert isinstance(found, Unrunnable)


def test_a_registry_falls_back_to_its_parent() -> None:
    own, known = TaskRegistry(CODES), TaskRegistry(CODES)
    other = TaskCode("add", gone, Wire())
    own.add(other)
    assert (own.find("add"), known.find("add")) == (other, CODE)
    assert known.find("elsewhere") is None
    with pytest.raises(UsageError, match="registered already"):
        own.add(CODE)


def test_a_value_is_kept_as_its_bytes() -> None:
    executor, ready = Executor(CODES), prepared()
    change = executor.complete(ready, ready.claim, 5, END)
    assert isinstance(change, Change)
    assert (change.token, change.job.status, change.job.ran) == (7, Status.COMPLETED, 2.0)
    assert CODE.unpack_result(change.job.result) == 5


def test_a_result_that_cannot_be_stored_fails_the_job_permanently() -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            raise ZeroDivisionError

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise ZeroDivisionError

    executor, ready = Executor(CODES), prepared()
    for value in (object(), Hostile(), {1: {2: Hostile()}}):
        found = executor.complete(ready, ready.claim, value, END)
        assert isinstance(found, Failed)
        assert found.permanent
        assert isinstance(found.error, UsageError)


@pytest.mark.parametrize(
    ("outcome", "status", "wait"),
    [
        (Failed(ValueError()), Status.SCHEDULED, 5.0),
        (Failed(ValueError(), permanent=True), Status.FAILED, None),
        (Failed(RetryLater(60), on_purpose=True, retry_after=60), Status.SCHEDULED, 60.0),
        (Cancelled(), Status.CANCELLED, None),
        (Snoozed(30.0), Status.SCHEDULED, 30.0),
        (Snoozed(AT + timedelta(hours=1)), Status.SCHEDULED, None),
    ],
    ids=["failed", "for good", "later", "cancelled", "snoozed", "until"],
)
def test_an_outcome_sets_status_and_retry_delay(
    outcome: Any, status: Status, wait: float | None
) -> None:
    policy = Retry(attempts=3, jitter=0.0)
    change = Executor(CODES).settle(claim(), outcome, policy, END)
    assert (change.job.status, change.wait, change.token) == (status, wait, 7)


def test_a_handed_back_job_is_charged_no_attempt() -> None:
    change = hand_back(claim())
    assert (change.job.status, change.job.attempts, change.wait) == (Status.QUEUED, 0, 0.0)


def test_invalid_unicode_in_an_error_is_replaced() -> None:
    fault = Fault("Error", "half a pair: \ud800", "line \udfff")
    end = replace(END, fault=fault)
    change = Executor(CODES).settle(claim(), Failed(ValueError()), None, end)
    assert change.job.error == Fault("Error", "half a pair: ?", "line ?")
    msgspec.json.encode(change.job)


def test_a_crash_is_recorded_and_costs_an_attempt() -> None:
    change = crashed(claim(), AT)
    assert (change.job.status, change.job.attempts, change.job.crashes) == (Status.QUEUED, 1, 1)
    assert change.job.error is not None
    assert change.job.error.message == "the process that ran it died"


def test_a_non_repeatable_job_fails_when_its_process_dies() -> None:
    change = crashed(claim(CallRecord("add", b"", rerun=False)), AT)
    assert change.job.status is Status.FAILED
    assert change.job.error is not None
    assert "on_crash='fail'" in change.job.error.message


def test_a_stopped_job_is_handed_back_unless_it_is_non_repeatable() -> None:
    once = claim(CallRecord("add", b"", rerun=False))
    change = stopped(once, AT)
    assert (change.job.status, change.job.finished_at) == (Status.FAILED, AT)
    assert change.job.error is not None
    assert "stopped while it ran" in change.job.error.message
    assert "on_crash='fail'" in change.job.error.message
    for back in (stopped(claim(), AT), stopped(once, AT, entered=False)):
        assert (back.job.status, back.job.attempts, back.job.error) == (Status.QUEUED, 0, None)


def test_a_crashed_job_with_an_undecodable_call_record_is_requeued() -> None:
    assert crashed(claim(b"junk"), AT).job.status is Status.QUEUED


def test_a_job_whose_process_dies_repeatedly_fails() -> None:
    executor, ready = Executor(CODES), prepared()
    statuses = []
    for crashes in range(5):
        one = claim(attempts=crashes + 1, crashes=crashes)
        statuses.append(executor.lost(one, ready.record, END).job.status)
    assert statuses == [Status.QUEUED, Status.QUEUED, *[Status.FAILED] * 3]


def test_only_the_loss_of_its_own_process_is_a_loss() -> None:
    job = claim().job
    assert is_own_loss(Failed(JobLost("gone", job_id="job-1")), job)
    assert not is_own_loss(Failed(JobLost("gone", job_id="job-2")), job)
    assert not is_own_loss(Failed(ValueError()), job)
    assert not is_own_loss(Cancelled(), job)


def test_an_outcome_that_no_store_can_write_becomes_a_failure() -> None:
    job = replace(claim().job, status=Status.SCHEDULED, run_at=AT, started_at=AT, result=b"x")
    change = unwritable(Change(job, 7, wait=5.0, stuck=True), TypeError("x"))
    assert (change.job.status, change.job.result, change.job.run_at) == (Status.FAILED, None, None)
    assert change.job.finished_at == AT
    assert (change.token, change.wait, change.stuck) == (7, None, True)
