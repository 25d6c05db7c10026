"""The commands of the relay and of the consumer, of topics, and of schemas."""
