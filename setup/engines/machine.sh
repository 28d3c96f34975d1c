#!/usr/bin/env bash
# Process 1 of a machine inside this machine: namespaces of processes, mounts and the network, in which an engine runs.
# Arguments: the machine's folder, and the folder of the engine's programs. It prints `ready`, and ends at the end of its
# input. The kernel then kills all processes of the machine, and its mounts and networks go with them. machine.mjs starts it.
set -euo pipefail
folder=$1 engine=$2

# Mounts of the machine are visible to all of its processes, and to nobody outside.
mount --make-rshared /
mkdir -p "$folder"/{outer-proc,cgroup,engine,tmp,overlay}
mount --bind "$engine" "$folder/engine"

# A part of the engine reads its process id, as the host counts, in the outer /proc (`part` in machine.mjs).
mount --bind /proc "$folder/outer-proc"
mount --make-private "$folder/outer-proc" # else what is mounted on /proc next would be there too
mount -t proc proc /proc
mount --rbind /sys/fs/cgroup "$folder/cgroup"
mount -t sysfs sysfs /sys # that of this network
mount --rbind "$folder/cgroup" /sys/fs/cgroup

# Engines write to paths that no option changes. Those writes stay in the machine's folder.
for path in etc opt run usr var; do
  mkdir -p "$folder/overlay/$path"/{upper,work}
  mount -t overlay -o "lowerdir=/$path,upperdir=$folder/overlay/$path/upper,workdir=$folder/overlay/$path/work" overlay "/$path"
done
mkdir -p "$folder/tmp/$(basename "$folder")"
chmod 1777 "$folder/tmp"
mount --rbind "$folder" "$folder/tmp/$(basename "$folder")"
mount --rbind "$folder/tmp" /tmp

ip link set lo up
echo ready
cat >/dev/null
