#!/bin/sh
# Times the public Dynamo offline replay (its published wheels, in an environment of their own) and kvsim on the same trace in one run, and prints the ratio.
# Usage: benchmarks/peer_dynamo.sh [TRACE]. Skips, visibly, where the wheels cannot be installed.
set -eu
here=$(dirname "$0")
trace=${1:-${KVSIM_SHARED:-$here/../../shared}/traces/mooncake_conversation.jsonl}
place=${PEER_VENV:-${TMPDIR:-/tmp}/peer-dynamo}
[ -f "$trace" ] || { echo "skipped: no trace at $trace"; exit 0; }
if [ ! -x "$place/bin/python" ]; then python3 -m venv "$place"; fi
if ! "$place/bin/python" -c "import dynamo._core" 2>/dev/null && ! "$place/bin/pip" install --quiet --disable-pip-version-check ai-dynamo-runtime; then
  echo "skipped: ai-dynamo-runtime cannot be installed here"
  exit 0
fi
"$place/bin/python" "$here/peer_dynamo.py" "$trace" > "$place/peer.jsonl" || { echo "skipped: this release of the peer has another interface"; exit 0; }
python=${PYTHON:-$here/../.venv/bin/python}
(cd "$here/.." && "$python" -m benchmarks.beside "$place/peer.jsonl")
