#!/usr/bin/env bash
# Passes every test: checks for what the tests need (installing it on Debian when run as root), then
# formatting, lints, rules of the repository and all tests. Arguments go to `cargo test`:
#
#   ./test.sh                          everything
#   ./test.sh -p tether --test up      one test target, after the same checks
set -euo pipefail
cd "$(dirname "$0")"

say() { printf '\n== %s\n' "$*"; }
die() { printf 'test.sh: %s\n' "$*" >&2; exit 1; }

# --- what must be on the machine ---------------------------------------------------------------
packages=() clients=()
have() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1; }
need() { have "$1" || packages+=("$2"); }
like() { have "$1" || clients+=("$2"); }

[ "$(uname -s)" = Linux ] || die "Tether runs on Linux only (mount namespaces, loop devices)"
command -v cargo >/dev/null 2>&1 || [ ! -r "$HOME/.cargo/env" ] || . "$HOME/.cargo/env"
command -v cargo >/dev/null 2>&1 ||
    die "cargo is missing: install Rust 1.90 or newer with rustfmt and clippy (https://rustup.rs), then run this again"
need cc gcc
need ld binutils
need kubectl kubernetes-client   # any kubectl on the PATH will do
need python3 python3
need setpriv util-linux          # tests without root drop privileges with it
like nbdinfo libnbd-bin          # real clients of volumes; tests say SKIPPED where one is missing
like qemu-img qemu-utils
like fio fio
like mkfs.ext4 e2fsprogs
like mkfs.xfs xfsprogs
python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)

if [ ${#packages[@]} -gt 0 ]; then
    command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ] ||
        die "missing: ${packages[*]} (Debian's names); install them, or run this as root on Debian"
    say "installing ${packages[*]}"
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${packages[@]}"
fi
if [ ${#clients[@]} -gt 0 ] && command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    say "installing ${clients[*]}"
    [ ${#packages[@]} -gt 0 ] || apt-get update -q || true
    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${clients[@]}" ||
        echo "SKIPPED: some of ${clients[*]} cannot be installed here; so are the tests that need them"
fi

# A virtual machine, for the test that moves one. Debian has qemu-utils from more than one suite: with qemu-system-x86 from another, apt
# would remove one of them, so that both are asked for at once, and from one suite if need be.
machine() {
    have qemu-system-x86_64 && have qemu-img ||
        DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends qemu-system-x86 qemu-utils ||
        DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends --allow-downgrades \
            "qemu-system-x86/$1" "qemu-utils/$1" || return
    have cpio && { have busybox && ! ldd "$(command -v busybox)" >/dev/null 2>&1; } ||
        DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends cpio busybox-static || return
    [ ! -d "$kernel" ] || return 0
    local work image
    work=$(mktemp -d) && (
        cd "$work" && chmod 755 . &&
            image=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1) &&
            apt-get download -q "$image" && dpkg-deb -x ./*.deb files && mkdir -p "$(dirname "$kernel")" && mv files "$kernel"
    )
    local rc=$?
    rm -rf "$work"
    return $rc
}
kernel=/var/cache/tether-test/kernel   # not the machine's own: it is only unpacked
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ] && [ "$(uname -m)" = x86_64 ]; then
    if ! { have qemu-system-x86_64 && have qemu-img && have cpio && have busybox && [ -d "$kernel" ]; }; then
        say "installing a virtual machine"
        machine "$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")" ||
            echo "SKIPPED: no virtual machine can be had here; so is the test that moves one"
    fi
fi

# --- tests -------------------------------------------------------------------------------------
say "formatting"
if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; else echo "SKIPPED: rustfmt is not installed"; fi
say "lints"
if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy --workspace --all-targets --locked -- -D warnings
else
    echo "SKIPPED: clippy is not installed"
fi
say "tests"
if [ $# -gt 0 ]; then cargo test --locked "$@"; else cargo test --workspace --locked; fi
say "all tests passed"
