"""The URL of a PostgreSQL store: parsed, refused with a hint, its password never shown."""

from __future__ import annotations

import pytest

from poolhand.errors import UsageError
from poolhand.stores.postgres.connections import Address, address_of


def test_our_options_are_taken_out_and_others_left_to_the_server() -> None:
    options = "schema=my+jobs&sslmode=require&connections=9&pooler=transaction"
    found = address_of(f"postgres://me:se%40cret@h:1/db?{options}")
    assert (found.schema, found.connections, found.pooled, found.listen) == (
        "my jobs", 9, True, None,
    )  # fmt: skip
    assert found.dsn == "postgresql://me:se%40cret@h:1/db?sslmode=require"
    assert found.shown == "postgresql://h:1/db?schema=my jobs"


def test_without_options_there_is_one_schema_and_a_few_connections() -> None:
    found = address_of("postgresql://h/db")
    assert (found.schema, found.pooled, found.listen) == ("public", False, None)
    assert 1 <= found.connections <= 10


@pytest.mark.parametrize("escaped", [False, True])
def test_the_listen_url_that_bypasses_a_pooler_is_a_separate_url(escaped: bool) -> None:
    way = "postgresql://me:secret@server:5432/db"
    given = "postgresql%3A%2F%2Fme%3Asecret%40server%3A5432%2Fdb" if escaped else way
    assert address_of(f"postgresql://h/db?listen={given}").listen == way


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@h/db", "postgresql://h/db"),
        ("postgresql://h/db?password=secret&user=me", "postgresql://h/db"),
        ("postgresql://me:secret@[::1]:5432/db", "postgresql://[::1]:5432/db"),
        ("postgresql://me:secret@a:1,b,[::2]/db", "postgresql://a:1,b,[::2]/db"),
        ("postgresql:///db?host=/run/postgresql", "postgresql:///db?host=/run/postgresql"),
        ("postgresql:///?host=h&dbname=db", "postgresql://h/db"),
        ("postgresql:///db", "postgresql://localhost/db"),
        ("postgresql://h/my%20db", "postgresql://h/my db"),
    ],
)
def test_an_address_is_shown_without_user_and_password(url: str, shown: str) -> None:
    found = address_of(url)
    assert found.shown == shown
    assert repr(found) == f"<Address {shown}>"


WHERE, MARK = "no host with a port", "%3A %2F %3F %23"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://me:se/cret@h/db", "an @ that is not before a host"),
        ("postgresql://me:secret/db", WHERE),
        ("postgresql://me:se@cret@h/db", "an @ that is not before a host"),
        ("postgresql://me:12#secret@h/db", MARK),
        ("postgresql://me:12?secret@h/db", "this URL cannot be read"),
        ("postgresql://me:12?a=secret@h/db&b@c=1", "name=value, separated by &"),
        ("postgresql://me:[secret@h/db", "this URL cannot be read"),
        ("postgresql://me:secret\u2100@h/db", "this URL cannot be read"),
        ("postgresql://me:secret\n@h/db", MARK),
        ("postgresql://me:secret\ud800@h/db", MARK),
        ("postgresql://me:secret@h:0/db", WHERE),
        ("postgresql://me:secret@h:65536/db", WHERE),
        ("postgresql://me:secret@::1/db", "an IPv6 address in brackets"),
        ("postgresql://me:secret@h/db?schema", "this URL cannot be read"),
        ("postgresql://me:secret@h/db?schema=", "at most 63 bytes"),
        ("postgresql://me:secret@h/db?schema=pg_mine", "does not begin with pg_"),
        (f"postgresql://me:secret@h/db?schema={'ö' * 32}", "at most 63 bytes"),
        ("postgresql://me:secret@h/db?schema=%00", "at most 63 bytes"),
        ("postgresql://me:secret@h/db?connections=0", "a number from 1 to 100"),
        ("postgresql://me:secret@h/db?connections=101", "a number from 1 to 100"),
        ("postgresql://me:secret@h/db?connections=many", "a number from 1 to 100"),
        ("postgresql://me:secret@h/db?pooler=session", "it can be transaction"),
        ("postgresql://me:secret@h/db?conections=5", "did you mean 'connections'?"),
        ("postgresql://me:secret@h/db?listen=h:secret", "listen is no URL"),
        ("postgresql://h/db?listen=postgresql://me:secret/db", "listen: after the @"),
        ("postgresql://h/db?listen=postgresql://h/db%3Fschema%3Dsecret", "go into the URL of"),
    ],
    ids=ascii,
)
def test_an_invalid_url_is_reported_with_the_fix_and_without_a_secret(url: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        address_of(url)
    error: BaseException | None = raised.value
    assert said in str(error)
    while error is not None:
        assert "secret" not in str(error)
        assert error.__cause__ is None
        error = None if error.__suppress_context__ else error.__context__


def test_all_faults_of_a_url_are_reported_at_once() -> None:
    with pytest.raises(UsageError, match=r"shema.*pooler=.*connections=.*schema="):
        address_of("postgresql://h/db?shema=x&pooler=x&connections=x&schema=")


def test_an_address_shows_no_password_within_anything() -> None:
    assert "secret" not in repr([Address("postgresql://me:secret@h/db", "postgresql://h/db")])
