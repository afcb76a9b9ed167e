"""One question to a store through the query door, with 2 threads: prints the seconds, opening the store included.

python bench/query.py STORE MEMORY SQL
"""

import sys
import time
from pathlib import Path

from annotq.collector.query import Door, Limits

store, memory, sql = sys.argv[1:]
start = time.perf_counter()
with Door(Path(store), Limits(rows=1_000_000, seconds=600, memory=memory, threads=2)) as door:
    answer = door.ask(sql)
print(time.perf_counter() - start)
assert answer.table.num_rows and not answer.truncated
