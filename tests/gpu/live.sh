#!/usr/bin/env bash
# A live run with one slow rank: what the collector answers meanwhile and afterwards. live.sh FOLDER [RANKS] [RUN OPTIONS...]
set -u
folder=${1:?usage: live.sh FOLDER [RANKS] [train.py options...]}
ranks=${2:-4}
shift $(($# > 1 ? 2 : 1))
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
export ANNOTQ_DB="$folder/store.duckdb"
annotq run --job live -- python3 -m torch.distributed.run --standalone --nproc-per-node "$ranks" "$here/train.py" \
    --names modules --slow-rank 1 --slow attention --slow-factor 6 --active 20 --steps 60 --pace-ms 150 "$@" >"$folder/run.txt" 2>&1 &
run=$!
endpoint=
for _ in $(seq 60); do
    endpoint=$(grep -oE '127\.0\.0\.1:[0-9]+' "$folder/run.txt" | head -1)
    [ -n "$endpoint" ] && break
    sleep 0.5
done
echo "collector: $endpoint"
for _ in $(seq 40); do # until the first window is in
    sleep 1
    matched=$(annotq query "SELECT coalesce(sum(matched), 0)::BIGINT AS matched FROM coverage" --endpoint "$endpoint" --format jsonl 2>/dev/null)
    case $matched in *'"matched": 0'* | *'"matched":0'* | '') ;; *) break ;; esac
done
echo "== during the run: $matched"
annotq stragglers --endpoint "$endpoint" --job live
echo "exit $?"
annotq collectives --endpoint "$endpoint" --job live --limit 8
wait "$run"
echo "== annotq run ended with $?"
tail -40 "$folder/run.txt"
echo "== after the run"
annotq stragglers --job live --format json
echo "exit $?"
