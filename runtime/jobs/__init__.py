"""Background jobs: their actions, how they start, and the batches in which any worker does them."""
