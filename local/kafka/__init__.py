"""Kafka and Debezium from Maven, for `make run KAFKA=1` and tests."""
