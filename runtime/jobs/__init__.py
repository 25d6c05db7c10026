"""Background jobs: an action on any number of rows, or on one person's data, done by any worker.

`actions` is where each app registers its actions, `start` writes a job, and `run` does its batches.
"""
