# The same value as block-device-gpt sets: it tells the bootloader element which GRUB to install.
case "$ARCH" in
    amd64|x86_64|i386) ;;
    *)
        echo "block-device-offset-gpt boots through a BIOS; there is none for $ARCH." >&2
        exit 1
        ;;
esac

export DIB_BLOCK_DEVICE=gpt
