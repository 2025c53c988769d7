# The debootstrap element would write files for ifupdown, which a minimal
# system does not have; cloud-init configures the network.
export DIB_APT_MINIMAL_CREATE_INTERFACES=${DIB_APT_MINIMAL_CREATE_INTERFACES:-0}
export DIB_HEAT_DATASOURCES=${DIB_HEAT_DATASOURCES:-OpenStack, ConfigDrive, NoCloud, Ec2}

# The files of the image are not closed to its users because the builder's are.
umask 022
