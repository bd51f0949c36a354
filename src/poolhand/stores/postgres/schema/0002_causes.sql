-- A job that waits for something other than a time or a slot says what: `waits_for` is its cause.
-- One that has no time either was set aside: the worker that claimed it did not have its task.
ALTER TABLE poolhand_waits ADD COLUMN waits_for text COLLATE "C";
CREATE INDEX poolhand_waits_causes ON poolhand_waits (waits_for, seq) WHERE waits_for IS NOT NULL;
CREATE INDEX poolhand_waits_aside ON poolhand_waits (pool, waits_for, seq)
    WHERE waits_for IS NOT NULL AND due_at IS NULL;

-- A session, by the key of its document, belongs to the user of its first accepted turn.
CREATE TABLE poolhand_session_users (
    session text COLLATE "C" PRIMARY KEY,
    owner text COLLATE "C"
);
INSERT INTO poolhand_session_users
SELECT key, convert_from(value, 'UTF8')::json->>'user' FROM poolhand_documents
WHERE key LIKE 'session/%';

-- Dead letters are kept longer than results: what is pruned is found without passing over them.
CREATE INDEX poolhand_ends_prunable ON poolhand_ends (no) WHERE dead = 0;
CREATE INDEX poolhand_ends_dead_in_order ON poolhand_ends (no) WHERE dead = 1;

-- Jobs that go on with the run of another: what a run keeps stays while one of its jobs is kept.
-- Which run that is ends how a job was ordered, as an id of 28 letters; 192 is none.
CREATE TABLE poolhand_runs (
    seq bigint PRIMARY KEY,
    run text COLLATE "C" NOT NULL
);
CREATE INDEX poolhand_runs_by_run ON poolhand_runs (run);
INSERT INTO poolhand_runs
SELECT seq, encode(substring(ordered FROM length(ordered) - 27), 'escape') FROM poolhand_jobs
WHERE get_byte(ordered, length(ordered) - 1) <> 192;

-- Receipts whose keys are digests alone are of runs begun before this step, and must not expire for
-- those; whether other runs may still use one is told by when the job that made it ended.
UPDATE poolhand_documents SET until = until + 7776000
WHERE key >= 'receipt/0' AND key < 'receipt/g' AND until IS NOT NULL;
