#!/usr/bin/env bash
# Everything of docs/gpu.md in one go, each piece with its own time limit and output file: all.sh OUTPUT_FOLDER [PIECE...]
set -u
out=${1:?usage: all.sh OUTPUT_FOLDER [PIECE...]}
shift
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
pieces=${*:-about tests collectives coverage costs window live data}
mkdir -p "$out"
read -ra ranks <<<"${RANKS:-2 4 8}"
export ANNOTQ_DB="$work/store.duckdb" XDG_STATE_HOME="$work/state" OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1

piece() { # name, seconds, command...
    local name=$1 seconds=$2 begun=$SECONDS
    shift 2
    timeout -k 5 "$seconds" "$@" >"$out/$name.txt" 2>&1
    echo "$name: exit $? after $((SECONDS - begun)) s"
    grep -v '^USDT' "$out/$name.txt" | tail -n "${TAIL:-12}" | cut -c1-1500
}

for wanted in $pieces; do
    case $wanted in
    about) piece about 60 python3 "$here/about.py" ;;
    tests) TAIL=24 piece tests "${SECONDS_TESTS:-150}" python3 -m pytest "$here" -v -s -rs --tb=short --show-capture=no -p no:cacheprovider --timeout 60 \
        --basetemp "$work/tests" ;;
    collectives)
        TAIL=30 piece collectives 60 python3 -m torch.distributed.run --standalone --nproc-per-node 2 "$here/collectives.py"
        ;;
    costs)
        piece costs 200 python3 "$here/costs.py" capture replay memory
        ;;
    window) piece window 200 python3 "$here/window.py" --work "$work/window" ;;
    coverage) TAIL=20 piece coverage "${SECONDS_COVERAGE:-240}" python3 "$here/check_coverage.py" --ranks "${ranks[@]}" --timeout 60 --work "$work/coverage" ;;
    live) TAIL=60 piece live 150 bash "$here/live.sh" "$work/live" 4 ;;
    data) piece data 150 bash "$here/record_data.sh" "$out/data.tgz" ;;
    *) echo "no piece $wanted" ;;
    esac
done
for log in "$work"/coverage/*/train.log "$work"/window/*.log; do
    [ -f "$log" ] && { echo "== $log"; tail -c 1500 "$log"; } >>"$out/logs.txt"
done
if [ -n "${KEEP:-}" ]; then # the recordings, to be looked at elsewhere
    find "$work" -name '*.json' -size +100k -exec gzip -9 {} +
    for kept in tests coverage window; do
        [ -d "$work/$kept" ] && tar -C "$work" -czf "$out/$kept.tgz" --exclude='*.duckdb*' "$kept"
    done
fi
rm -rf "$work"
