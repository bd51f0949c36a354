"""Other queues in a SQLite file, with the same work: put, take, done, each job by itself.

Both wait for the disk at every commit, as poolhand does. They run in plain loops, without the
threads and the polling of a consumer: that is their lowest cost.
"""

from __future__ import annotations

from durable_cases import Span

WARM_UP = 20


def huey(jobs: int, folder: str) -> dict[str, float]:
    """SqliteHuey with fsync. A job is deleted when it is taken: a crash after that loses it."""
    from huey import SqliteHuey

    queue = SqliteHuey(filename=f"{folder}/huey.db", fsync=True, store_none=True)

    @queue.task()  # type: ignore[untyped-decorator, unused-ignore]
    def no_op(number: int) -> None:
        """Does nothing."""

    def put(count: int) -> None:
        for number in range(count):
            no_op(number)

    def take() -> int:
        done = 0
        while (task := queue.dequeue()) is not None:
            queue.execute(task)
            done += 1
        return done

    put(WARM_UP)
    take()
    putting, taking = Span(), Span()
    with putting.timed():
        put(jobs)
    with taking.timed():
        done = take()
    assert done == jobs
    assert queue.result_count() == jobs + WARM_UP
    return {**putting.per(jobs, "put"), **taking.per(jobs, "take")}


def persist_queue(jobs: int, folder: str) -> dict[str, float]:
    """SQLiteAckQueue. A taken job without acknowledgement is found when the queue is next opened.

    It commits with the default of SQLite, which is `synchronous=FULL`.
    """
    from persistqueue import SQLiteAckQueue

    queue = SQLiteAckQueue(folder)

    def run(count: int) -> tuple[Span, Span]:
        putting, taking = Span(), Span()
        with putting.timed():
            for number in range(count):
                queue.put(number)
        with taking.timed():
            for _ in range(count):
                queue.ack(id=queue.get(block=False, raw=True)["pqid"])
        return putting, taking

    run(WARM_UP)
    putting, taking = run(jobs)
    assert queue.acked_count() == jobs + WARM_UP
    queue.close()
    return {**putting.per(jobs, "put"), **taking.per(jobs, "take")}
