"""The run journal: what a job has done, so that it is not done again."""
