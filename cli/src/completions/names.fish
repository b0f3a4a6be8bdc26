
# The names of locks, after the commands that take one.
complete -c watchlock -n "__fish_seen_subcommand_from @COMMANDS@" -a "(command watchlock __names (commandline -ct) 2> /dev/null)"
