case "${DISTRO_NAME:-debian}" in
    debian|ubuntu) ;;
    *)
        echo "apt-archive-cache keeps apt's packages; leave it out of an image of $DISTRO_NAME." >&2
        exit 1
        ;;
esac

# The dpkg element's own cache is a bind mount that debian-minimal's "apt-get clean" empties.
export DIB_APT_LOCAL_CACHE=0
export DIB_APT_ARCHIVE_CACHE=${DIB_APT_ARCHIVE_CACHE:-}
export DIB_APT_ARCHIVE_CACHE_DAYS=${DIB_APT_ARCHIVE_CACHE_DAYS:-30}
