if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
    case "$SOURCE_DATE_EPOCH" in
        *[!0-9]*)
            echo "SOURCE_DATE_EPOCH is \"$SOURCE_DATE_EPOCH\"; expected seconds since 1970." >&2
            exit 1
            ;;
    esac
    export SOURCE_DATE_EPOCH
fi
