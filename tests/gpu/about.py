"""Date, versions and where graph node ids come from here, as one JSON object."""

from __future__ import annotations

import datetime
import json
import platform
from importlib import metadata

import torch

from annotq.agent.node_ids import _driver_version, _find_cupti, id_source

if __name__ == "__main__":
    packages = ("torch", "cuda-bindings", "nvidia-cuda-cupti", "duckdb", "pyarrow", "grpcio")
    found = {name: next((d.version for d in metadata.distributions(name=name)), None) for name in packages}
    cupti = _find_cupti()
    print(
        json.dumps(
            {
                "date": datetime.date.today().isoformat(),
                "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
                "driver": _driver_version(),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "nccl": torch.cuda.nccl.version() if torch.cuda.is_available() else None,
                "ids": vars(id_source()),
                "cupti": cupti and cupti._name,
                **found,
            }
        )
    )
