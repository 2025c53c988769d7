#!/bin/sh
## kola:
##   description: no unit has failed
##   timeoutMin: 2
set -eu
# shellcheck source=data/functions.sh
. "$KOLA_EXT_DATA/functions.sh"
failed=$(systemctl --failed --no-legend --plain | without_hardware)
[ -z "$failed" ] || fail "failed units: $failed"
