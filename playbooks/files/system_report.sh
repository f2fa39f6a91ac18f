# Describes a host's system in lines for plugin_utils/answers.py. Runs in sh on any Linux, with or without root, and
# without Python. The output contains no addresses, names or keys. It shows only that sshd_config contains lists of users.
tell() { [ -z "$2" ] || printf 'ftcluster-%s: %s %s\n' answer "$1" "$2"; }
flat() { tr -s '\n\t ' ' ' | sed 's/ $//'; }
tell locale "LANG=${LANG:-} LC_ALL=${LC_ALL:-} charmap=$(locale charmap 2>/dev/null)"
for name in http_proxy https_proxy HTTPS_PROXY no_proxy; do
  eval "[ -z \"\${$name:-}\" ]" || tell proxy "$name is set"
done
tell umask "$(umask)"
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin
tell uid "$([ "$(id -u)" = 0 ] && echo root || echo 'not root')"
(. /etc/os-release && tell os "$ID ${VERSION_ID:-} (like: ${ID_LIKE:-}; ${VARIANT_ID:-} ${PLATFORM_ID:-})")
tell kernel "$(uname -r) $(uname -m)"
tell virtualization "$(systemd-detect-virt 2>/dev/null)"
tell systemd "$(systemctl --version 2>/dev/null | head -n 1)"
tell libc "$(getconf GNU_LIBC_VERSION 2>/dev/null || echo other)"
tell cgroups "$(stat -fc %T /sys/fs/cgroup 2>/dev/null)"
tell huge_pages "$(cat /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null)"
tell sysctl "ports $(flat < /proc/sys/net/ipv4/ip_local_port_range); reserved $(flat < /proc/sys/net/ipv4/ip_local_reserved_ports); fips $(cat /proc/sys/crypto/fips_enabled 2>/dev/null); no_ipv6 $(cat /proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null)"
tell crypto_policy "$(cat /etc/crypto-policies/state/current 2>/dev/null)"
tell limits "open files $(ulimit -n); locked memory $(ulimit -l)"
tell clock "$(timedatectl show -p NTPSynchronized 2>/dev/null)"

for name in apt-get dnf dnf5 yum microdnf zypper rpm-ostree transactional-update pacman apk; do
  command -v $name > /dev/null && managers="${managers:-}$name "
done
tell package_manager "${managers:-none}"
for name in ip getent sudo doas nft iptables curl findmnt systemd-run systemd-tmpfiles numactl restorecon semanage; do
  command -v $name > /dev/null || lacks="${lacks:-}$name "
done
tell programs_missing "${lacks:-none}"
names='nftables firewalld openssh-server systemd iproute iproute2 python3-libselinux python3-dnf libselinux-python3 policycoreutils gperftools-libs libtcmalloc-minimal4 libtcmalloc-minimal4t64 python3.11 python3.12'
if command -v dpkg-query > /dev/null; then
  tell packages "$(dpkg-query -W -f '${db:Status-Abbrev}${Package} ${Version}; ' $names 2>/dev/null | tr ';' '\n' | sed -n 's/^ *ii *//p' | tr '\n' ';')"
  tell packages_available "$(apt-cache policy nftables libtcmalloc-minimal4 libtcmalloc-minimal4t64 python3.11 2>/dev/null | sed -n 's/^\([a-z].*\):$/\1/p; s/^ *Candidate: *//p' | flat)"
elif command -v rpm > /dev/null; then
  tell packages "$(rpm -q --qf '%{NAME} %{VERSION}-%{RELEASE}; ' $names 2>/dev/null | grep -v 'not installed' | flat)"
  for name in dnf5 dnf; do
    command -v $name > /dev/null || continue
    tell packages_available "$(timeout 60 $name -q -C repoquery --qf '%{name} %{version};\n' nftables gperftools-libs python3.11 python3.12 2>/dev/null | sort -u | flat)"
    break
  done
  tell epel "$(ls /etc/yum.repos.d 2>/dev/null | grep -c '^epel')"
fi
for minor in 6 7 8 9 10 11 12 13 14 15; do
  path=$(command -v python3.$minor) && tell python "$path $($path -I -c 'import platform; print(platform.python_version())' 2>/dev/null)"
done
tell python3 "$(python3 -I -c 'import platform, sys; print(platform.python_version(), sys.executable)' 2>/dev/null || echo none)"
[ ! -x /usr/libexec/platform-python ] || tell platform_python yes

tell selinux "$([ -e /sys/fs/selinux/enforce ] && echo "enforcing=$(cat /sys/fs/selinux/enforce) $(sed -n 's/^SELINUXTYPE=/policy=/p' /etc/selinux/config 2>/dev/null) context=$(id -Z 2>/dev/null)" || echo none)"
tell apparmor "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null)"
if [ -e /sys/fs/selinux/enforce ]; then
  for path in /opt /opt/ftcluster /opt/ftcluster/current /opt/ftcluster/mesh /var/lib/ftcluster /var/lib/ftcluster/.ssh /var/lib/ftcluster/.ssh/authorized_keys /etc/ftcluster/firewall.nft /etc/systemd/system/ftcluster-firewall.service; do
    [ ! -e "$path" ] || tell selinux_context "$path $(stat -c %C "$path" 2>/dev/null)"
  done
  grep -hs 'avc: *denied' /var/log/audit/audit.log | grep -E 'comm="(sshd|nft|python|mpirun|hydra|systemd|sudo)' |
    sed -n 's/.*denied *\({[^}]*}\).*comm=\("[^"]*"\).*\(scontext=[^ ]*\) *\(tcontext=[^ ]*\) *\(tclass=[^ ]*\).*/\1 \2 \3 \4 \5/p' | sort | uniq -c | sort -rn | head -n 5 |
    while read -r line; do tell selinux_denied "$line"; done
fi

for unit in firewalld ufw nftables iptables ftcluster-firewall auditd chronyd chrony systemd-timesyncd sshd ssh; do
  state=$(systemctl is-active $unit 2>/dev/null)
  [ "$state" != active ] || active="${active:-}$unit "
done
tell services_active "${active:-none}"
tell nft "$(nft --version 2>/dev/null)"
tell nft_tables "$(nft list tables 2>/dev/null | sed 's/^table //' | tr '\n' ';')"
tell iptables "$(iptables --version 2>/dev/null)"
[ ! -r /etc/firewalld/firewalld.conf ] || tell firewalld "$(sed -n 's/^\(FirewallBackend\|DefaultZone\|NftablesTableOwner\)=/\1=/p' /etc/firewalld/firewalld.conf | flat)"
tell ufw "$(sed -n 's/^ENABLED=/enabled=/p' /etc/ufw/ufw.conf 2>/dev/null)"

sshd -T -C user=ftcluster,host=localhost,addr=127.0.0.1 2>/dev/null |
  grep -E '^(maxstartups|maxsessions|usepam|pubkeyauthentication|authenticationmethods|strictmodes|authorizedkeysfile|permittty|logingracetime|allowtcpforwarding) ' |
  while read -r line; do tell sshd "$line"; done
sshd -T 2>/dev/null | grep -E '^(allow|deny)(users|groups) |^(authorizedkeyscommand|forcecommand|trustedusercakeys) [^n]' | cut -d ' ' -f 1 | sort | uniq -c |
  while read -r line; do tell sshd_lists "$line"; done
tell sudo "$(sudo -V 2>/dev/null | head -n 1) $(grep -hEso '^Defaults[^#]*(requiretty|use_pty|targetpw|rootpw|noexec|secure_path)' -r /etc/sudoers /etc/sudoers.d 2>/dev/null | grep -Eo '!?(requiretty|use_pty|targetpw|rootpw|noexec|secure_path)$' | sort -u | flat)"
me=${SUDO_USER:-$(id -un)}
if grep -q "^$me:" /etc/passwd; then tell account 'the login user is in /etc/passwd'; else tell account 'the login user comes from a directory service'; fi
case $me in *[!a-z0-9_-]*) tell account 'the name of the login user contains characters other than a-z 0-9 _ -' ;; esac
home=$(getent passwd "$me" | cut -d : -f 6)
for path in / /tmp /var/tmp /dev/shm /opt /var/lib "$home"; do
  found=$(findmnt -nro FSTYPE,OPTIONS -T "$path" 2>/dev/null | sed 's/ / ,/' | tr ',' '\n' | grep -E '^[a-z0-9]+ $|^(ro|rw|noexec|nosuid|nodev|root_squash|sec=.*|vers=.*)$' | flat)
  [ "$path" != "$home" ] || path=home
  tell mount "$path $found"
done
