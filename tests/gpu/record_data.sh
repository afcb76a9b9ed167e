#!/usr/bin/env bash
# Records the spools of tests/data/recorded: small jobs of 4 ranks of which the truth is known. record_data.sh OUTPUT.tgz
set -u
out=${1:?usage: record_data.sh OUTPUT.tgz}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
record() { # name, train.py options...
    local name=$1
    shift
    ANNOTQ_JOB=$name ANNOTQ_SPOOL="$work/$name" timeout 60 python3 -m torch.distributed.run --standalone --nproc-per-node 4 \
        "$here/train.py" --layers 2 --active 8 --steps 22 "$@" >"$work/$name.log" 2>&1
    echo "$name: exit $?, $(du -sk "$work/$name" | cut -f1) KiB"
    find "$work/$name" -name '*.trace.json' -exec gzip -9 {} +
    find "$work/$name" -name '*.lock' -delete
}
record late_launch --names regions --reduce flat --slow launch --slow-rank 2 --delay-ms 3
record slow_attention --names modules --slow attention --slow-rank 1 --slow-factor 6
record rotating --names regions --reduce flat --slow rotating --delay-ms 3
record even --names modules
record instantiated_again --names modules --lifetimes
tar -C "$work" -czf "$out" --exclude='*.log' .
ls -l "$out"
tail -n 3 "$work"/*.log | cut -c1-300
rm -rf "$work"
