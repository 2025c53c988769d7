# The three agent programs install as "slim" unless the user asks for "package".
# diskimage-builder's own default is called "source"; there is no source install
# here, so "source" means "slim" too.
for _program in os_collect_config os_apply_config os_refresh_config; do
    _variable=DIB_INSTALLTYPE_${_program}
    _type=${!_variable:-${DIB_DEFAULT_INSTALLTYPE:-source}}
    if [ "$_type" = source ]; then
        _type=slim
    fi
    export "$_variable=$_type"
done
unset _program _variable _type

# The element dib-python, which svc-map and others need, takes every Debian
# for one with Python 2, and fails there.
export DIB_PYTHON_VERSION=${DIB_PYTHON_VERSION:-3}

# The files of the image are not closed to its users because the builder's are.
umask 022
