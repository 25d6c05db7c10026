"""The commands of partitions."""
