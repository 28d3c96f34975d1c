# The guest's first script, which catatonit runs as process 1. It prepares the machine, runs the steps, reports each result on the
# second serial line and switches the machine off. Lines for the host start with "microvm: ". /project is the source tree,
# read-only. Changes of the root file system are discarded with the guest.
exec </dev/null >/dev/ttyS1 2>&1
stty -F /dev/ttyS1 raw -echo 2>/dev/null
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
export NO_COLOR=1 SANDYARD_TEST_PACE=10 NODE_COMPILE_CACHE=/var/tmp/compile-cache

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
hostname microvm-test
touch /etc/resolv.conf
ip link set lo up
for module in kvm-amd tun fuse loop overlay; do modprobe "$module" || echo "the kernel module $module cannot be loaded"; done

# step NAME COMMAND…: runs the command and reports its exit code.
step() {
  name=$1
  shift
  echo "microvm: step $name"
  "$@"
  echo "microvm: end $name $?"
}

machine() {
  echo "Linux $(uname -r), $(grep -m1 '^model name' /proc/cpuinfo | cut -d: -f2-), $(nproc) processor(s)"
  free -m | sed -n 2p
  echo "Node $(node --version)"
  test -c /dev/kvm && echo '/dev/kvm is there'
}

# Each test file runs in a process of its own, as in `npm test`. The output of a test appears at once.
tests() {
  node --test --test-concurrency=1 --test-timeout=1500000 \
    --test-reporter=./setup/closing-reporter.mjs --test-reporter-destination=stdout "$@"
}

cd /project || exit 1
step machine machine
for file in $(cat /project/.microvm-tests); do step "$file" tests "$file"; done
echo 'microvm: over'
sync
echo o >/proc/sysrq-trigger
sleep 60
