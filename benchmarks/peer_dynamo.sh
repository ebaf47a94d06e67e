#!/bin/sh
# Times the public Dynamo replay on the same trace in its own environment, if it can be installed from its published wheels.
set -eu
trace=${1:-../shared/traces/mooncake_conversation.jsonl}
place=${TMPDIR:-/tmp}/peer-dynamo
python3 -m venv "$place"
if ! "$place/bin/pip" install --quiet ai-dynamo; then
  echo "skipped: ai-dynamo cannot be installed here"
  exit 0
fi
"$place/bin/python" - "$trace" <<'PY' || { echo "skipped: this release has no offline replay"; exit 0; }
import sys, time
try:
    from dynamo.llm import mocker_replay  # the offline replay of some releases
except ImportError:
    sys.exit(1)
start = time.perf_counter()
mocker_replay(sys.argv[1])
print(f"peer: {time.perf_counter() - start:.2f} s wall")
PY
