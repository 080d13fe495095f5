#!/bin/sh
# Makes a plain package tree the home of an E2B-compatible sandbox: customize.sh TREE, as root on the host. After mmdebstrap has
# ended and not as its hook, because it empties /tmp and /run at its end.
set -eu
tree=$1
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# --- the user: password-less, and root without asking
chroot "$tree" useradd --create-home --uid 1000 --shell /bin/bash --groups sudo user
chroot "$tree" passwd --delete root >/dev/null
printf 'Defaults secure_path="%s"\n%%sudo ALL=(ALL:ALL) NOPASSWD: ALL\n' "$path" >"$tree/etc/sudoers.d/forkyard"
chmod 0440 "$tree/etc/sudoers.d/forkyard"

# The day on which each password was set last, which would be the day of the build.
sed -i 's/^\([^:]*:[^:]*:\)[0-9]*:/\120089:/' "$tree/etc/shadow"

# --- login shells. Every command of the SDKs runs in one, and each fork in it costs milliseconds: these files start no process.
cat >"$tree/etc/profile" <<PROFILE
# Read by login shells. What the sandbox's environment sets stays as it is, PATH above all.
export PATH="\${PATH:-$path}"
if [ -n "\${PS1-}" ] && [ -n "\${BASH-}" ] && [ -r /etc/bash.bashrc ]; then
  . /etc/bash.bashrc
fi
for i in /etc/profile.d/*.sh; do
  if [ -r "\$i" ]; then . "\$i"; fi
done
unset i
PROFILE
for home in "$tree/root" "$tree/home/user" "$tree/etc/skel"; do
	cat >"$home/.profile" <<'PROFILE'
# Read by login shells after /etc/profile.
if [ -n "${BASH_VERSION-}" ] && [ -r "$HOME/.bashrc" ]; then . "$HOME/.bashrc"; fi
if [ -d "$HOME/bin" ]; then PATH="$HOME/bin:$PATH"; fi
if [ -d "$HOME/.local/bin" ]; then PATH="$HOME/.local/bin:$PATH"; fi
PROFILE
done
chroot "$tree" chown -R user:user /home/user

# --- what pip, npm and git should do without asking
rm -f "$tree"/usr/lib/python3*/EXTERNALLY-MANAGED
printf '[global]\ndisable-pip-version-check = true\nroot-user-action = ignore\n' >"$tree/etc/pip.conf"
chroot "$tree" git config --system init.defaultBranch main

# --- places that E2B's images have
mkdir -p "$tree/code" "$tree/run/e2b"
chmod 0777 "$tree/code"
chmod -R 0777 "$tree/usr/local"
printf 'TEMPLATE_ID=base\nBUILD_ID=base\n' >"$tree/.e2b"

# --- names: each sandbox gets its own, envd writes them
: >"$tree/etc/machine-id"
rm -f "$tree/var/lib/dbus/machine-id"
echo sandbox >"$tree/etc/hostname"
printf '127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n' >"$tree/etc/hosts"
rm -f "$tree/etc/resolv.conf"
printf 'nameserver 8.8.8.8\nnameserver 1.1.1.1\n' >"$tree/etc/resolv.conf"

# gVisor puts a tmpfs, that is guest memory, over an empty /tmp; with a file in it /tmp lies on the disk.
: >"$tree/tmp/.disk"

# --- what the build leaves behind, and what differs from one build to the next
rm -rf "$tree"/dev/* "$tree"/var/lib/apt/lists/* "$tree"/var/cache/apt/* "$tree"/var/cache/debconf/*-old \
	"$tree"/var/cache/ldconfig/* "$tree"/var/cache/adduser/* "$tree"/var/log/* "$tree"/etc/apt/apt.conf.d/99mmdebstrap \
	"$tree"/etc/dpkg/dpkg.cfg.d/99mmdebstrap "$tree"/etc/*- "$tree"/var/lib/dpkg/*-old "$tree"/var/lib/dpkg/lock* \
	"$tree"/var/lib/dpkg/triggers/Lock "$tree/root"/.cache "$tree/root"/.npm "$tree"/run/lock
mkdir -p "$tree/var/log/apt" "$tree/var/cache/apt/archives/partial" "$tree/var/lib/apt/lists/partial"
mkdir -m 1777 "$tree/run/lock"
