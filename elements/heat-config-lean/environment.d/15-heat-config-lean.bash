case "${DISTRO_NAME:-debian}" in
    debian|ubuntu) ;;
    *)
        echo "heat-config-lean makes images of Debian and Ubuntu smaller; leave it out of an image" \
            "of $DISTRO_NAME." >&2
        exit 1
        ;;
esac

export DIB_HEAT_LEAN_KERNEL=${DIB_HEAT_LEAN_KERNEL:-linux-image-cloud}
export DIB_HEAT_LEAN_INITRD=${DIB_HEAT_LEAN_INITRD:-list}
export DIB_HEAT_LEAN_CLOUD_INIT=${DIB_HEAT_LEAN_CLOUD_INIT:-1}
export DIB_HEAT_LEAN_DOC=${DIB_HEAT_LEAN_DOC:-0}

case "$DIB_HEAT_LEAN_INITRD $DIB_HEAT_LEAN_CLOUD_INIT $DIB_HEAT_LEAN_DOC" in
    "list "[01]" "[01] | "most "[01]" "[01]) ;;
    *)
        echo "heat-config-lean: DIB_HEAT_LEAN_INITRD is '$DIB_HEAT_LEAN_INITRD' (list or most)," \
            "DIB_HEAT_LEAN_CLOUD_INIT is '$DIB_HEAT_LEAN_CLOUD_INIT' (0 or 1), DIB_HEAT_LEAN_DOC" \
            "is '$DIB_HEAT_LEAN_DOC' (0 or 1)" >&2
        exit 1
        ;;
esac
