# The dpkg element's own cache is a bind mount that debian-minimal's "apt-get clean" empties.
export DIB_APT_LOCAL_CACHE=0
export DIB_APT_ARCHIVE_CACHE=${DIB_APT_ARCHIVE_CACHE:-}
export DIB_APT_ARCHIVE_CACHE_DAYS=${DIB_APT_ARCHIVE_CACHE_DAYS:-30}
