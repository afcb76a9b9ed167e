"""HolisticTraceAnalysis names the potential stragglers of jobs: one line of JSON per job folder, best candidate first.

python hta_stragglers.py CANDIDATES FOLDER...    (a folder holds rankN.json; in an environment with HolisticTraceAnalysis)
"""

import json
import logging
import sys
from pathlib import Path

logging.disable(logging.CRITICAL)

from hta.trace_analysis import TraceAnalysis  # noqa: E402

candidates = int(sys.argv[1])
for folder in map(Path, sys.argv[2:]):
    files = {int(path.stem.removeprefix("rank")): str(path) for path in folder.glob("rank*.json")}
    try:
        analysis = TraceAnalysis(trace_files=files, trace_dir="/")
        ranks = [int(rank) for rank in analysis.get_potential_stragglers(num_candidates=candidates)]
        print(json.dumps({"ranks": ranks}), flush=True)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
