# shellcheck shell=sh
fail() {
    echo "$*" >&2
    exit 1
}

# Units of hardware that no container has.
without_hardware() {
    grep -vE '^(systemd-(udev|growfs|remount-fs|modules-load|sysctl)|boot|efi|dev-|sys-)' || true
}
