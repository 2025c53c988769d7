#!/bin/sh
## kola:
##   description: no unit has failed
##   timeoutMin: 2
set -eu
# shellcheck source=/dev/null
. "$KOLA_EXT_DATA/functions.sh"
failed=$(systemctl --failed --no-legend --plain | without_hardware)
[ -z "$failed" ] || fail "failed units: $failed"
