# Functions that get packages of Debian without installing them.

# Makes a directory for apt-get(8), which then knows these releases and not those of this machine. The packages come from
# Debian's servers, by the mirror that this machine uses.
#
# usage: use_releases DIR RELEASE...
use_releases() {
    local apt=$1 mirror release
    shift
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep --invert-match security | head --lines=1)
    mkdir --parents "$apt"/{etc/preferences.d,etc/apt.conf.d,lists/partial,cache/archives/partial}
    for release in "$@"; do
        printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$mirror" "$release"
    done >"$apt/etc/sources.list"
    printf 'Dir::Etc "%s";\nDir::State::lists "%s";\nDir::Cache "%s";\nAPT::Sandbox::User "root";\n' \
        "$apt/etc" "$apt/lists" "$apt/cache" >"$apt/apt.conf"
    export APT_CONFIG=$apt/apt.conf
    apt-get --quiet --quiet update
}
