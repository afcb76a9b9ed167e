"""annotq's reader alone takes in a whole trace: prints the seconds, without the imports."""

import sys
import time
from pathlib import Path

from annotq.agent.kineto import read_trace

start = time.perf_counter()
with read_trace(Path(sys.argv[1]), rank=0) as trace:
    rows = sum(batch.num_rows for batch in trace.gpu_events()) + sum(batch.num_rows for batch in trace.host_spans())
print(time.perf_counter() - start)
assert rows
