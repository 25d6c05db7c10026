"""Kafka and Debezium from Maven, for `make run KAFKA=1`, tests and benchmarks. `local.stack` imports it."""
