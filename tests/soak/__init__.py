"""`make soak`: run a week of a whole orderpost in an hour, with the events of a week."""
