"""A full collection does not walk what a process loaded at its start."""

from __future__ import annotations

import subprocess
import sys


def test_the_web_process_has_nothing_old_to_collect_once_it_serves():
    code = """
import gc
import config.wsgi
assert gc.get_freeze_count() > 100_000, gc.get_freeze_count()
assert len(gc.get_objects()) < 10_000, len(gc.get_objects())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
