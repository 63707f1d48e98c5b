#!/usr/bin/env bash
# scripts.sh - a script keeps to what macOS ships, or says "Linux only" before it does anything else
#
# Prints what is wrong, or nothing. macOS has bash 3.2, GNU make 3.81, BSD's tools, one-true-awk and Perl. The patterns
# below are what people reach for; nothing is parsed. `.ci/run tree` calls this.
set -euo pipefail
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/.."

# What a Mac runs:
scripts='tests/run.sh tests/deps.sh tests/on-a-mac.sh tests/known_red.sh examples/from-0.3.sh'
makefiles='Makefile tests/softmetal/build.mk'

# shellcheck disable=SC2016
linux_only='[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }'
for name in .ci/run tests/*.sh tests/*/*.sh examples/*.sh; do
    first=$(grep -m1 -vE '^(#|set |$)' "$name")
    case " $scripts " in
    *" $name "*) [ "$first" != "$linux_only" ] || echo "$name: is said to run on a Mac, and says Linux only" ;;
    *) [ "$first" = "$linux_only" ] || echo "$name: does not begin with: $linux_only" ;;
    esac
done

# On stdin lines of: an extended regular expression, a tab, the reason. "run " in front: a command begins there.
refuse() { # FILE...
    local pattern reason before='(^|[|;&({`!]|\<(then|else|do|while|until|exec|env)\>)[[:space:]]*'
    while IFS=$'\t' read -r pattern reason; do
        case $pattern in "run "*) pattern=$before${pattern#run } ;; esac
        grep -nE -e "$pattern" "$@" /dev/null | grep -vE '^[^:]*:[0-9]+:[[:space:]]*#' |
            sed "s/^\([^:]*:[0-9]*\):[[:space:]]*/\1: $reason: /" || true
    done
}
# shellcheck disable=SC2086 # lists of words, here and below
refuse $scripts <<'END'
\<(mapfile|readarray|coproc|BASHPID|EPOCHREALTIME|EPOCHSECONDS)\>	bash 4
\<(declare|local|typeset|readonly) +-[a-zA-Z]*[An]	bash 4
\<wait +-n	bash 4.3
\$\{[A-Za-z_0-9]+(\[[^]]*\])?(,|\^|@[A-Za-z]\})	bash 4
\[-[0-9]+\]|\$\{[A-Za-z_]+:[0-9]+:-	bash 4.2
\|&|&>>|;;?&	bash 4
printf +.?%\(|\<shopt +-s +(globstar|lastpipe)|\<test +-v|\[ +-v	bash 4
\<read +.*-t *[0-9]*\.|\<read +-[a-z]*[Ni]	bash 4
(^|[^+])"\$\{[A-Za-z_]+\[@\]\}"	bash before 4.4 takes an empty array for unset
END
# shellcheck disable=SC2086
refuse $makefiles <<'END'
^[A-Za-z_]+ *(!|::)=|^ *(undefine|private|load)\>|^define +[^ ]+ *=	make 4
\$\((file|guile|let|intcmp) |^\.(ONESHELL|EXTRA_PREREQS|NOTINTERMEDIATE)|\.SHELLSTATUS|&:	make 4
\<echo +-[ne]	sh of macOS prints the option
END
# shellcheck disable=SC2086
refuse $scripts $makefiles <<'END'
run (timeout|nproc|sha[0-9]*sum|md5sum|tac|setsid|flock|shuf|numfmt|gawk|gsed)\>	macOS has no such command
run (sed|e?grep|sort|uniq|cut|tr|head|tail|find|xargs|cp|mv|rm|ln|ls|mkdir|touch|stat|date|du|wc|paste|tee|seq|mktemp|basename|dirname|install|cmp|diff|chmod|awk)\>[^|;&)]* --[a-z]	a long option
run sed +(-[A-Za-z]+ +)*-[A-Za-z]*[irsz]	sed -i without a suffix, -r, -s, -z
run sed\>.*\\[+?|<>bwWsS]	a regular expression of GNU's sed
run grep +(-[A-Za-z]+ +)*-[A-Za-z]*[PTzZ]	grep -P, -T, -z
run (readlink|realpath) +-[a-z]	an option of GNU's
run date +.*(-d\>|-Is|%N|-r *@)	date -d, %N
run stat +-[cfL]	an option of GNU's
run xargs +(-[A-Za-z0-9]+ +)*-[a-zA-Z0-9]*[dr]\>	xargs -d, -r
run sort +(-[A-Za-z0-9]+ +)*-[A-Za-z]*[Vhz]	sort -V, -h, -z
run find +.*-(printf|regextype|executable|readable|writable)\>	a test of GNU's find
run find +-	find without a folder
run cp +(-[A-Za-z]+ +)*-[A-Za-z]*[tTsu]	an option of GNU's cp
run (mv|ln|install) +(-[A-Za-z]+ +)*-[A-Za-z]*[DtTr]\>	an option of GNU's
run head +-[nc] *-	head -n -N
\<(gensub|strftime|systime|asorti?|PROCINFO|IGNORECASE|BEGINFILE|ENDFILE)\>	GNU's awk
END
