# The names of locks, after the commands that take one.
_watchlock_names() {
    local -a names
    names=("${(@f)$(command watchlock __names "$PREFIX" 2> /dev/null)}")
    names=("${(@)names:#}")
    compadd -a names
}

