"""Try to break the guarantee: `make chaos` (ARGS="--minutes 30 --seed 7").

Real processes, steady customers, a fault every few seconds; at the end an auditor compares what the API
acknowledged, what the database holds, and what the provider and the broker got.
"""
