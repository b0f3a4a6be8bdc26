
# The names of locks, after the commands that take one.
_watchlock_with_names() {
    local words word name cur before command= skip= position=0
    # The words up to the cursor: those of bash end at colons too.
    read -ra words <<< "${COMP_LINE:0:COMP_POINT}"
    [[ "${COMP_LINE:0:COMP_POINT}" == *[[:space:]] ]] && words+=("")
    cur=${words[${#words[@]}-1]}
    for word in "${words[@]:1:${#words[@]}-2}"; do
        if [[ $skip ]]; then skip=
        elif [[ $word == --documents* ]]; then return
        elif [[ $word == -* && " @VALUED@ " == *" $word "* ]]; then skip=1
        elif [[ $word == -* ]]; then :
        elif [[ ! $command ]]; then command=$word
        else ((position += 1)); fi
    done
    if [[ $skip || $cur == -* || ! $command || $position -gt 0 || " @COMMANDS@ " != *" $command "* ]]; then
        _watchlock "$@"
        return
    fi
    COMPREPLY=()
    # Bash replaces only what follows the last colon.
    before=
    [[ $COMP_WORDBREAKS == *:* && $cur == *:* ]] && before=${cur%"${cur##*:}"}
    while IFS= read -r name; do
        COMPREPLY+=("$(printf '%q' "${name#"$before"}")")
    done < <(command watchlock __names "$cur" 2> /dev/null)
}
complete -F _watchlock_with_names -o bashdefault -o default watchlock
