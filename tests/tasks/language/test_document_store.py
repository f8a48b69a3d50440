"""Documents come back from the disk as they were, in any order, and leave nothing behind."""

import errno
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tasks.language.document_store import Document, DocumentStore, StoredDocuments, document_store

DOCUMENTS = [
    Document("a.txt", "first"),
    Document("dür/b.md", "zweiter Satz – ß\n\0"),
    Document("", ""),
    Document("c", "日本"),
]


def test_documents_come_back_in_the_order_that_is_asked_for(tmp_path):
    with document_store(tmp_path) as store:
        for one in DOCUMENTS:
            store.add(one)
        found = StoredDocuments(store, np.array([3, 0, 1, 1, 2]))
        expected = [DOCUMENTS[place] for place in (3, 0, 1, 1, 2)]
        assert len(store) == 4 and len(found) == 5
        assert list(found) == list(found) == expected
        assert found[2] == expected[2] and found[-1] == expected[-1]
        assert list(found[1:4]) == expected[1:4]
        assert list(found[np.array([4, 0])]) == [expected[4], expected[0]]
        assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_no_file(tmp_path):
    program = f"""
import os, signal
from pathlib import Path
from tasks.language.document_store import document_store
from tasks.language.document_store import Document
with document_store(Path({str(tmp_path)!r})) as store:
    for n in range(100):
        store.add(Document("a", "word " * 10_000))
    assert os.fstat(store._file.fileno()).st_size > 1_000_000
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3])
    assert killed.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(tmp_path):
    with open("/dev/full", "r+b", buffering=0) as full, pytest.raises(OSError) as caught:
        DocumentStore(full, tmp_path).add(DOCUMENTS[0])
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(tmp_path)


def test_memory_does_not_grow_with_the_text(tmp_path):
    """20 MB of text, of which 16 bytes a document are held."""
    tracemalloc.start()
    try:
        with document_store(tmp_path) as store:
            for n in range(5000):
                store.add(Document(str(n), f"{n} " * 800))
            found = StoredDocuments(store, np.random.default_rng(0).permutation(5000))
            tracemalloc.reset_peak()
            assert sum(int(one.source) for one in found) == 5000 * 4999 // 2
            assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()
