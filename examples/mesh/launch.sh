#!/usr/bin/env bash
# A mesh of real processes on this machine: launch.sh DATA TENSOR [jax|torch] [tensor|data|diagonal]
# The last argument says, for jax, which devices each of the two hosts has; see train_jax.py.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
[ "$#" -ge 2 ] || { echo "launch.sh DATA TENSOR [jax|torch] [tensor|data|diagonal]" >&2 && exit 2; }
data="$1" tensor="$2" engine="${3:-jax}" order="${4:-tensor}"
mesh="data=$data,tensor=$tensor"
hosts=2
case "$engine" in jax | torch) ;; *) echo "engine $engine; allowed: jax, torch" >&2 && exit 2 ;; esac
case "$order" in
    tensor | data | diagonal) ;;
    *) echo "order $order; allowed: tensor, data, diagonal" >&2 && exit 2 ;;
esac
if [ "$engine" = jax ] && [ "$((data * tensor % hosts))" -ne 0 ]; then
    echo "$((data * tensor)) devices for $hosts hosts; allowed: as many for each" >&2
    exit 2
fi
python="${PYTHON:-python3}"
logs="${LOGS:-$(mktemp -d)}"
mkdir -p "$logs"
export PYTHONPATH="$here/../..${PYTHONPATH:+:$PYTHONPATH}"
"$python" "$here/mesh_example.py" "$logs/data"

show() {
    for log in "$logs/test_${data}x${tensor}_host"*.log; do
        echo "--- ${log##*/}"
        grep -E "^(Host|✓|○)" "$log" || tail -n 20 "$log"
    done
    echo "logs in $logs"
}

if [ "$engine" = torch ]; then
    result=0
    "$python" -m torch.distributed.run --standalone --nproc-per-node "$((data * tensor))" \
        --redirects 3 --log-dir "$logs/torchrun" "$here/train_torch.py" "$mesh" "$logs/data" \
        > "$logs/torchrun.log" 2>&1 || result=$?
    for rank in $(seq 0 $((data * tensor - 1))); do
        cat "$logs"/torchrun/*/attempt_0/"$rank"/std*.log > "$logs/test_${data}x${tensor}_host$rank.log"
    done
    show
    exit "$result"
fi

port="$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
started=()
for host in $(seq 0 $((hosts - 1))); do
    "$python" "$here/train_jax.py" "127.0.0.1:$port" "$host" "$hosts" "$mesh" "$order" "$logs/data" \
        > "$logs/test_${data}x${tensor}_host$host.log" 2>&1 &
    started+=("$!")
done
result=0
for process in "${started[@]}"; do
    wait "$process" || result=$?
done
show
exit "$result"
