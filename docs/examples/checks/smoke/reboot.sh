#!/bin/sh
# kola: {"tags": "needs-reboot", "description": "a file survives a reboot"}
set -eu
case "${AUTOPKGTEST_REBOOT_MARK:-}" in
"")
    echo kept >/root/kept
    sync
    /tmp/autopkgtest-reboot second
    ;;
second)
    [ "$(cat /root/kept)" = kept ]
    ;;
esac
