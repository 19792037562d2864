"""The worker: a Prefect process worker that lets its flow runs save before it ends."""
