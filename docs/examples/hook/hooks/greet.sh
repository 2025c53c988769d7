#!/bin/sh
# Heat hook "greet": greets each of the names in the input "names", as the config says.

if [ "$#" -eq 0 ]; then
    exec "${HEAT_CONFIG_LIB:-/usr/libexec/heat-config/lib}/heat-hook" run "$0" deploy
fi

set -eu
heat_hook=${HEAT_CONFIG_LIB:-/usr/libexec/heat-config/lib}/heat-hook

greeting=$("$heat_hook" get config)
"$heat_hook" get --lines input names | while IFS= read -r name; do
    echo "$greeting, $name"
done
date +%F > "${heat_outputs_path:?}.day"
