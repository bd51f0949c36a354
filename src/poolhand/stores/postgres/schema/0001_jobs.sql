-- A job is in `jobs` as it was ordered, which never changes. Where it is now is a row of one other
-- table: it waits, runs (`claims`) or is over (`ends`). Rows of those come and go with every job,
-- so that they are cleaned up early and often; nothing that finished jobs leave behind is ever met
-- by those that are queued.

CREATE SEQUENCE poolhand_job_numbers;
CREATE SEQUENCE poolhand_token_numbers;

CREATE TABLE poolhand_counters (
    documents bigint NOT NULL,  -- the highest version of a document that is gone
    store text NOT NULL,        -- tells this store from all others
    skew double precision NOT NULL DEFAULT 0  -- by how much the clock of the server was set
);
INSERT INTO poolhand_counters VALUES (0, gen_random_uuid()::text);

-- What is counted here is true for pools that have something to count for: those with a cap, a
-- bound, lanes or a limit per key. Of the others nothing but spec, paused and resized is kept.
CREATE TABLE poolhand_pools (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    spec bytea NOT NULL,
    paused smallint NOT NULL DEFAULT 0,
    resized bigint,
    running bigint NOT NULL DEFAULT 0,
    waiting bigint NOT NULL DEFAULT 0,
    queued bigint NOT NULL DEFAULT 0,
    scheduled bigint NOT NULL DEFAULT 0,
    parked bigint NOT NULL DEFAULT 0,
    round bigint NOT NULL DEFAULT 0,   -- fair: the rank of the lane that was served last
    lanes bigint NOT NULL DEFAULT 0,   -- fair: the last number given to a lane
    keys bigint NOT NULL DEFAULT 0     -- idempotency keys of finished jobs
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- How many jobs of a pool ended how: rows to be added up, now and then by somebody for all.
CREATE TABLE poolhand_tallies (
    pool bigint NOT NULL,
    completed bigint NOT NULL,
    failed bigint NOT NULL,
    cancelled bigint NOT NULL,
    expired bigint NOT NULL,
    rejected bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX poolhand_tallies_pool ON poolhand_tallies (pool);

CREATE TABLE poolhand_jobs (
    seq bigint PRIMARY KEY,  -- the order of arrival
    id text COLLATE "C" NOT NULL,
    pool bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    session text COLLATE "C",
    tenant text COLLATE "C",
    closes_at double precision,
    ordered bytea NOT NULL,
    brief bytea NOT NULL
);
CREATE UNIQUE INDEX poolhand_jobs_by_id ON poolhand_jobs (id);
CREATE INDEX poolhand_jobs_by_name ON poolhand_jobs (name, seq);
CREATE INDEX poolhand_jobs_by_key ON poolhand_jobs (key, seq) WHERE key <> '';
CREATE INDEX poolhand_jobs_by_session ON poolhand_jobs (session, seq) WHERE session IS NOT NULL;
CREATE INDEX poolhand_jobs_by_tenant ON poolhand_jobs (tenant, seq) WHERE tenant IS NOT NULL;

-- Places: 0 parked, 1 scheduled, 2 blocked by its session, 3 blocked by its key, 4 queued,
-- 5 between two places (within one transaction only). A scheduled one that is due at -1 was written
-- by a transaction of the user's and has not come in: no pool counts it yet, and its rank says
-- whether it may run again, its turn whether the calendar tells its time, ready_at that time.
CREATE TABLE poolhand_waits (
    seq bigint PRIMARY KEY,
    pool bigint NOT NULL,
    place smallint NOT NULL,
    rank double precision,     -- queued in a fair pool: the number of its lane
    turn bigint,
    since double precision NOT NULL,
    ready_at double precision, -- NULL: the same as since
    due_at double precision,
    by_wall smallint,          -- due_at is a time of the calendar
    closes_at double precision,
    gate text COLLATE "C",     -- the session or the key whose gate it has to do with
    crowd text COLLATE "C",    -- those among whom an eviction chooses
    owner bigint,              -- parked: under whose lease
    course bytea               -- what has become of it, NULL: nothing yet
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX poolhand_waits_ready ON poolhand_waits (pool, rank, turn) WHERE place = 4;
CREATE INDEX poolhand_waits_due ON poolhand_waits (by_wall, due_at) WHERE place = 1;
CREATE INDEX poolhand_waits_scheduled ON poolhand_waits (pool) WHERE place = 1;
CREATE INDEX poolhand_waits_parked ON poolhand_waits (pool, seq) WHERE place = 0;
CREATE INDEX poolhand_waits_parkers ON poolhand_waits (owner) WHERE place = 0;
CREATE INDEX poolhand_waits_closing ON poolhand_waits (closes_at, seq, pool)
    WHERE closes_at IS NOT NULL;
CREATE INDEX poolhand_waits_gates ON poolhand_waits (pool, gate, place, rank, turn)
    WHERE gate IS NOT NULL;
CREATE INDEX poolhand_waits_crowds ON poolhand_waits (pool, crowd, seq) WHERE crowd IS NOT NULL;

-- A claim that is stuck is about code that still runs; its job may wait, run or be over.
CREATE TABLE poolhand_claims (
    token bigint PRIMARY KEY,
    seq bigint NOT NULL,
    pool bigint NOT NULL,
    owner bigint NOT NULL,
    slot bigint NOT NULL,
    started double precision NOT NULL,
    waited double precision NOT NULL,
    stuck smallint NOT NULL,
    wished smallint NOT NULL,
    gate text COLLATE "C",
    course bytea
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX poolhand_claims_by_job ON poolhand_claims (seq);
CREATE INDEX poolhand_claims_by_pool ON poolhand_claims (pool);
CREATE INDEX poolhand_claims_by_owner ON poolhand_claims (owner);
CREATE INDEX poolhand_claims_gates ON poolhand_claims (pool, gate) WHERE gate IS NOT NULL;

-- Status: 0 completed, 1 failed, 2 cancelled, 3 expired, 4 rejected.
CREATE TABLE poolhand_ends (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- the order in which jobs ended, nearly
    seq bigint NOT NULL,
    pool bigint NOT NULL,
    status smallint NOT NULL,
    dead smallint NOT NULL,
    wished smallint NOT NULL,
    over_at double precision NOT NULL,
    course bytea NOT NULL
);
CREATE UNIQUE INDEX poolhand_ends_by_job ON poolhand_ends (seq);
CREATE INDEX poolhand_ends_dead ON poolhand_ends (seq) WHERE dead = 1;

CREATE TABLE poolhand_lanes (
    pool bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    rank bigint NOT NULL,
    no bigint NOT NULL,
    queued bigint NOT NULL,
    PRIMARY KEY (pool, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX poolhand_lanes_by_rank ON poolhand_lanes (pool, rank, no) WHERE queued > 0;
CREATE INDEX poolhand_lanes_resting ON poolhand_lanes (pool, rank) WHERE queued = 0;

CREATE TABLE poolhand_sessions (
    pool bigint NOT NULL,
    line text COLLATE "C" NOT NULL,
    holder bigint NOT NULL,
    PRIMARY KEY (pool, line)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000);

CREATE TABLE poolhand_keys (
    pool bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    newcomer smallint NOT NULL,  -- it stands for a job that is parked
    seq bigint NOT NULL,
    ended bigint,
    until double precision,
    PRIMARY KEY (pool, tenant, key, newcomer)
);
CREATE INDEX poolhand_keys_ended ON poolhand_keys (pool, ended) WHERE ended IS NOT NULL;
CREATE INDEX poolhand_keys_by_job ON poolhand_keys (seq);

CREATE TABLE poolhand_owners (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    owner bytea NOT NULL,
    renewal bigint NOT NULL DEFAULT 0,
    buried smallint NOT NULL DEFAULT 0
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE poolhand_documents (
    key text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    until double precision,
    value bytea NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX poolhand_documents_until ON poolhand_documents (until) WHERE until IS NOT NULL;

-- Lines of one stream that were written together are one row: kinds and bodies, in MessagePack,
-- compressed (after the letter z) where they are many.
CREATE TABLE poolhand_log (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream text COLLATE "C" NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    at double precision NOT NULL,
    lines bytea NOT NULL
);
CREATE UNIQUE INDEX poolhand_log_streams ON poolhand_log (stream, last);

-- What is to be in the audit and has no numbers yet: to give them when it is written, everybody who
-- writes would have to wait for everybody else. Readers number what no open transaction can precede.
CREATE TABLE poolhand_audit (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at double precision NOT NULL,
    count bigint NOT NULL,
    lines bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
