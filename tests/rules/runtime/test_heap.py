"""A full collection does not walk what a process loaded at its start, and its threads share few arenas."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest


def test_the_web_process_has_nothing_old_to_collect_once_it_serves():
    code = """
import gc
import config.wsgi
assert gc.get_freeze_count() > 100_000, gc.get_freeze_count()
assert len(gc.get_objects()) < 10_000, len(gc.get_objects())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_forty_threads_share_two_arenas(tmp_path):
    code = """
import ctypes, sys, threading
from outbox.process.heap import freeze_heap
freeze_heap()
libc, all_there = ctypes.CDLL(None), threading.Barrier(40)
libc.fopen.restype = ctypes.c_void_p
def work():
    all_there.wait()
    libc.malloc(3000)
    all_there.wait()
threads = [threading.Thread(target=work) for _ in range(40)]
for one in threads:
    one.start()
for one in threads:
    one.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
    if not hasattr(ctypes.CDLL(None), "malloc_info"):
        pytest.skip("the C library here is not glibc")
    report = tmp_path / "malloc.xml"
    subprocess.run([sys.executable, "-c", code, str(report)], check=True, timeout=60)
    assert 1 <= report.read_text().count("<heap nr=") <= 2
