# The same value as block-device-mbr sets: it tells the bootloader element which GRUB to install.
case "$ARCH" in
    amd64|x86_64|i386) ;;
    *)
        echo "block-device-offset-mbr boots through a BIOS; there is none for $ARCH." >&2
        exit 1
        ;;
esac

export DIB_BLOCK_DEVICE=mbr
