-- compatible with 2
-- Jobs are found by when and for whom they were submitted. Both stand in `ordered` as well: rows that
-- older code writes, and those from before this step, have neither, and get them bit by bit.
ALTER TABLE poolhand_jobs ADD COLUMN submitted REAL;
ALTER TABLE poolhand_jobs ADD COLUMN user_name TEXT;
CREATE INDEX poolhand_jobs_by_time ON poolhand_jobs (submitted);
CREATE INDEX poolhand_jobs_by_user ON poolhand_jobs (user_name) WHERE user_name IS NOT NULL;
CREATE INDEX poolhand_jobs_undated ON poolhand_jobs (seq) WHERE submitted IS NULL;
