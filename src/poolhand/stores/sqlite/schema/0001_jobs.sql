-- A job is in `jobs` as it was ordered, which never changes. Where it is now is a row of one other
-- table: it waits, runs (`claims`) or is over (`ends`). So nothing that finished jobs leave behind
-- is ever met by those that are queued, and no change rewrites a payload.

CREATE TABLE poolhand_counters (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    jobs INTEGER NOT NULL,    -- the last number given to a job
    turns INTEGER NOT NULL,   -- … to an entry into a line
    tokens INTEGER NOT NULL,  -- … to a claim
    ends INTEGER NOT NULL,    -- … to an outcome
    pool INTEGER NOT NULL,    -- the pool that got the last job
    documents INTEGER NOT NULL -- the highest version of a document that is gone
);
INSERT INTO poolhand_counters VALUES (1, 0, 0, 0, 0, 0, 0);

CREATE TABLE poolhand_pools (
    no INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    spec BLOB NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0,
    resized INTEGER,
    running INTEGER NOT NULL DEFAULT 0,
    waiting INTEGER NOT NULL DEFAULT 0,
    queued INTEGER NOT NULL DEFAULT 0,
    scheduled INTEGER NOT NULL DEFAULT 0,
    parked INTEGER NOT NULL DEFAULT 0,
    round INTEGER NOT NULL DEFAULT 0,   -- fair: the rank of the lane that was served last
    lanes INTEGER NOT NULL DEFAULT 0,   -- fair: the last number given to a lane
    keys INTEGER NOT NULL DEFAULT 0,    -- idempotency keys of finished jobs
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0,
    rejected INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE poolhand_jobs (
    seq INTEGER PRIMARY KEY,  -- the order of arrival
    id TEXT NOT NULL,
    pool INTEGER NOT NULL,
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    session TEXT,
    tenant TEXT,
    closes_at REAL,
    ordered BLOB NOT NULL,
    brief BLOB NOT NULL
);
CREATE UNIQUE INDEX poolhand_jobs_by_id ON poolhand_jobs (id);
CREATE INDEX poolhand_jobs_by_name ON poolhand_jobs (name);
CREATE INDEX poolhand_jobs_by_key ON poolhand_jobs (key) WHERE key <> '';
CREATE INDEX poolhand_jobs_by_session ON poolhand_jobs (session) WHERE session IS NOT NULL;
CREATE INDEX poolhand_jobs_by_tenant ON poolhand_jobs (tenant) WHERE tenant IS NOT NULL;

-- Places: 0 parked, 1 scheduled, 2 blocked by its session, 3 blocked by its key, 4 queued,
-- 5 between two places (within one transaction only).
CREATE TABLE poolhand_waits (
    seq INTEGER PRIMARY KEY,
    pool INTEGER NOT NULL,
    place INTEGER NOT NULL,
    rank,                     -- queued in a fair pool: the number of its lane
    turn INTEGER,
    since REAL NOT NULL,
    ready_at REAL,            -- NULL: the same as since
    due_at REAL,
    by_wall INTEGER,          -- due_at is a time of the calendar
    closes_at REAL,
    gate TEXT,                -- the session or the key whose gate it has to do with
    crowd TEXT,               -- those among whom an eviction chooses
    owner INTEGER,            -- parked: under whose lease
    course BLOB               -- what has become of it, NULL: nothing yet
);
CREATE INDEX poolhand_waits_ready ON poolhand_waits (pool, rank, turn) WHERE place = 4;
CREATE INDEX poolhand_waits_due ON poolhand_waits (by_wall, due_at) WHERE place = 1;
CREATE INDEX poolhand_waits_parked ON poolhand_waits (pool) WHERE place = 0;
CREATE INDEX poolhand_waits_parkers ON poolhand_waits (owner) WHERE place = 0;
CREATE INDEX poolhand_waits_closing ON poolhand_waits (closes_at, seq, pool) WHERE closes_at IS NOT NULL;
CREATE INDEX poolhand_waits_gates ON poolhand_waits (pool, gate, place, rank, turn) WHERE gate IS NOT NULL;
CREATE INDEX poolhand_waits_crowds ON poolhand_waits (pool, crowd) WHERE crowd IS NOT NULL;

-- A claim that is stuck is about code that still runs; its job may wait, run or be over.
CREATE TABLE poolhand_claims (
    token INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL,
    pool INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    started REAL NOT NULL,
    waited REAL NOT NULL,
    stuck INTEGER NOT NULL,
    wished INTEGER NOT NULL,
    gate TEXT,
    course BLOB
);
CREATE INDEX poolhand_claims_by_job ON poolhand_claims (seq);
CREATE INDEX poolhand_claims_gates ON poolhand_claims (pool, gate) WHERE gate IS NOT NULL;

-- Status: 0 completed, 1 failed, 2 cancelled, 3 expired, 4 rejected.
CREATE TABLE poolhand_ends (
    no INTEGER PRIMARY KEY,   -- the order in which jobs ended
    seq INTEGER NOT NULL,
    pool INTEGER NOT NULL,
    status INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    wished INTEGER NOT NULL,
    over_at REAL NOT NULL,
    course BLOB NOT NULL
);
CREATE UNIQUE INDEX poolhand_ends_by_job ON poolhand_ends (seq);
CREATE INDEX poolhand_ends_dead ON poolhand_ends (seq) WHERE dead = 1;

CREATE TABLE poolhand_lanes (
    pool INTEGER NOT NULL,
    key TEXT NOT NULL,
    rank INTEGER NOT NULL,
    no INTEGER NOT NULL,
    queued INTEGER NOT NULL,
    PRIMARY KEY (pool, key)
) WITHOUT ROWID;
CREATE INDEX poolhand_lanes_by_rank ON poolhand_lanes (pool, rank, no) WHERE queued > 0;
CREATE INDEX poolhand_lanes_resting ON poolhand_lanes (pool, rank) WHERE queued = 0;

CREATE TABLE poolhand_sessions (
    pool INTEGER NOT NULL,
    line TEXT NOT NULL,
    holder INTEGER NOT NULL,
    PRIMARY KEY (pool, line)
) WITHOUT ROWID;

CREATE TABLE poolhand_keys (
    pool INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    newcomer INTEGER NOT NULL,  -- it stands for a job that is parked
    seq INTEGER NOT NULL,
    ended INTEGER,
    until REAL,
    PRIMARY KEY (pool, tenant, key, newcomer)
) WITHOUT ROWID;
CREATE INDEX poolhand_keys_ended ON poolhand_keys (pool, ended) WHERE ended IS NOT NULL;
CREATE INDEX poolhand_keys_by_job ON poolhand_keys (seq);

CREATE TABLE poolhand_owners (
    no INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner BLOB NOT NULL,
    renewal INTEGER NOT NULL DEFAULT 0,
    buried INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE poolhand_documents (
    key TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    until REAL,
    value BLOB NOT NULL
);
CREATE INDEX poolhand_documents_until ON poolhand_documents (until) WHERE until IS NOT NULL;

-- Lines of one stream that were written together are one row: kinds and bodies, in MessagePack,
-- compressed (after the letter z) where they are many.
CREATE TABLE poolhand_log (
    no INTEGER PRIMARY KEY,
    stream TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    at REAL NOT NULL,
    lines BLOB NOT NULL
);
CREATE INDEX poolhand_log_streams ON poolhand_log (stream, last);
