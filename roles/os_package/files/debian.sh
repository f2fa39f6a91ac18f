#!/bin/sh
# Usage: debian.sh install|remove RECORD really|pretend LOCK_SECONDS NAME...
set -eu
export LC_ALL=C DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
umask 022
verb=$1 record=$2 how=$3 lock_seconds=$4
shift 4
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
refreshed=no

tell() { # KEY VALUE: what the role finds among what sudo and login scripts say
    printf 'ftcluster-%s: %s\n' answer "$*"
}

get() {
    apt-get -y -q -o "DPkg::Lock::Timeout=$lock_seconds" -o Dpkg::Options::=--force-confdef \
        -o Dpkg::Options::=--force-confold "$@" </dev/null 2>"$errors"
}

give_up() { # MESSAGE for the user
    tell problem "$1 $(grep '^[EW]:' "$errors" | tr '\n' ' ')"
    exit 1
}

is_installed() { # PACKAGE
    case $(dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null) in ?i*) return 0 ;; esac
    return 1
}

recorded() { # NAME
    [ ! -e "$record" ] || awk -v key="$1:" '$1 == key { $1 = ""; print }' "$record"
}

record_line() { # NAME PACKAGE...: none takes the line away
    key=$1
    shift
    packages=$(printf '%s\n' "$@" | sort -u | xargs)
    mkdir -p "$(dirname "$record")"
    [ ! -e "$record" ] || awk -v key="$key:" '$1 != key' "$record" >"$record.new"
    [ -z "$packages" ] || echo "$key: $packages" >>"$record.new"
    if [ -s "$record.new" ]; then
        sync "$record.new"
        mv "$record.new" "$record"
    else
        rm -f "$record.new" "$record"
        rmdir "$(dirname "$record")" 2>/dev/null || :
    fi
}

## installing

refresh() {
    refreshed=yes
    # where this fails, the installation tells what is missing
    [ "$how" = pretend ] || get update >/dev/null || :
}

is_old() {
    [ -z "$(find /var/lib/apt/periodic/update-success-stamp /var/lib/apt/lists -maxdepth 0 -mtime -1 2>/dev/null)" ]
}

# "Inst name (version" is new, "Inst name [version] (version" is an upgrade
new_packages() { # NAME
    plan=$(get -s install --no-install-recommends --no-remove "$1") &&
        printf '%s\n' "$plan" | sed -n 's/^Inst \([^ ]*\) (.*/\1/p'
}

# The record comes first: a run that is broken off must not leave what removal does not know.
install_one() { # NAME
    new=$(new_packages "$1") || return 1
    # apt-get takes an unknown name with a dot for a pattern, and is content with what matches it
    printf '%s\n' "$new" | grep -qxF "$1" || return 1
    [ "$how" = really ] || return 0
    # shellcheck disable=SC2046,SC2086 # lists of words
    record_line "$1" $(recorded "$1") $new
    get install --no-install-recommends --no-remove "$1" >/dev/null
}

forget_missing() { # NAME
    there=
    for package in $(recorded "$1"); do
        ! is_installed "$package" || there="$there $package"
    done
    # shellcheck disable=SC2086 # a list of words
    record_line "$1" $there
}

install_all() {
    ! is_old || refresh
    for name; do
        ! is_installed "$name" || continue
        if ! install_one "$name"; then
            [ "$refreshed" = yes ] || { refresh && install_one "$name"; } || refreshed=failed
            if ! is_installed "$name" && [ "$how" = really ]; then
                forget_missing "$name"
                give_up "apt-get could not install $name. On the host, try: sudo apt-get update && sudo apt-get install $name."
            fi
        fi
        tell installed "$name ${new:-}"
    done
}

## removing

others_gone_with() { # PACKAGE...: what apt-get would remove or install beyond $packages
    plan=$(get -s remove --no-auto-remove "$@") || { echo unknown && return; }
    for package in $(printf '%s\n' "$plan" | sed -n 's/^\(Remv\|Inst\) \([^ ]*\).*/\2/p'); do
        case " $packages " in *" $package "*) ;; *) echo "$package" ;; esac
    done
}

remove_all() {
    packages= left=
    manual=" $(apt-mark showmanual | xargs) "
    for name; do
        for package in $(recorded "$name"); do
            is_installed "$package" || continue
            # a dependency that somebody has asked for since is theirs
            case "$package $manual" in "$name "*) ;; *" $package "*) continue ;; esac
            packages="$packages $package"
        done
    done

    # what is left may need others of the list in turn
    # shellcheck disable=SC2086 # lists of words
    while [ -n "$packages" ] && [ -n "$(others_gone_with $packages)" ]; do
        free=
        for package in $packages; do
            if [ -z "$(others_gone_with "$package")" ]; then
                free="$free $package"
            else
                left="$left $package"
            fi
        done
        # no single one is needed, but one of several is
        [ "$free" != "$packages" ] || { left="$left $packages" && free=; }
        packages=$free
    done

    # shellcheck disable=SC2086 # lists of words
    if [ -n "$packages" ] && [ "$how" = really ]; then
        unchanged=
        for package in $packages; do
            dpkg -V "$package" 2>/dev/null | grep -q '^..5.* c ' || unchanged="$unchanged $package"
        done
        get remove --no-auto-remove $packages >/dev/null || give_up "apt-get could not remove$packages."
        [ -z "$unchanged" ] || get purge --no-auto-remove $unchanged >/dev/null || give_up "apt-get could not purge$unchanged."
    fi
    if [ "$how" = really ]; then
        for name; do
            record_line "$name"
        done
        # shared with a package that is asked for still: to be removed with that one
        if [ -n "$left" ] && grep -q '^[^ ]*:' "$record" 2>/dev/null; then
            heir=$(sed -n 's/^\([^ ]*\):.*/\1/p' "$record" | tail -n 1)
            # shellcheck disable=SC2046,SC2086 # lists of words
            record_line "$heir" $(recorded "$heir") $left
        fi
    fi
    [ -z "$packages" ] || tell removed "$packages"
    [ -z "$left" ] || tell left "$left, because other packages need them"
}

"${verb}_all" "$@"
