"""Sums of each minute's traffic for the admin's charts. Apps declare their sums with `summed`.

A task of the engine writes the sums. `metrics` does not need them. The admin imports `charts` and `minutes`.
"""
