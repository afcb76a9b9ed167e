"""HolisticTraceAnalysis loads a trace: prints the seconds, without the imports."""

import sys
import time

from hta.trace_analysis import TraceAnalysis

start = time.perf_counter()
# By file, not by folder: a trace without distributedInfo has no rank that HTA could sort a folder by.
TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
print(time.perf_counter() - start)
