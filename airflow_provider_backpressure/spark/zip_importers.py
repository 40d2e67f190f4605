"""What a worker's import system keeps from one task to the next."""

import sys
import zipimport


def forget_archives() -> None:
    """Drop the cached finders of zip archives from the path.

    Before each task PySpark invalidates every cached finder, and up to Python 3.12 a finder of an archive then reads
    the archive's whole directory again: with PySpark's own one on the path, 0.2 s of processor time a task, more than
    everything that a small range takes otherwise (seen on 4.1.3). A finder that is needed again is rebuilt from memory.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)
