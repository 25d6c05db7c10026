"""`make soak`: a week of a whole orderpost in an hour, with everything that a week may bring."""
