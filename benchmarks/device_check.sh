#!/usr/bin/env bash
# Judge and time clover-rt on this machine's card, in at most 8 minutes, into one JSON file.
#
#   device_check.sh --backend cuda
#   device_check.sh --backend rocm --wheel clover_rt-0.1.0-py3-none-any.whl --out check.json
#   device_check.sh --help
#
# Needs python3 (or PYTHON=...) with clover-rt's dependencies and the card's own (torch, pyopencl);
# the wheel is put beside them, without network. Ctrl-C ends it early: what was found is written.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
minutes=8
previous=
for word in "$@"; do
  [[ "$previous" != --minutes ]] || minutes="$word"
  [[ "$word" != --minutes=* ]] || minutes="${word#*=}"
  previous="$word"
done
# the program says what is wrong with it
[[ "$minutes" =~ ^[0-9]*[.]?[0-9]+$ ]] || exec "${PYTHON:-python3}" "$here/device_check.py" "$@"
# the program keeps to its time by itself; this holds even if it hangs
read -r end grace < <(awk -v m="$minutes" 'BEGIN {
  left = m < 0.2 ? 30 * m : 6
  print 60 * m - left, 0.7 * left
}')
exec timeout --foreground --signal=TERM --kill-after="$grace" "$end" \
  "${PYTHON:-python3}" -u "$here/device_check.py" "$@"
