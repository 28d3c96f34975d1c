const NUMBERS: Readonly<Record<string, Readonly<Record<string, number>>>> = {
  x64: { inotify: 294, watch: 254, memfd: 319, shmget: 29, msgget: 68, semget: 64 },
  arm64: { inotify: 26, watch: 27, memfd: 279, shmget: 194, msgget: 186, semget: 190 },
}

/** Shell commands of a tenant who wants something to stay on the host. Most go on until the sandbox is ended. */
export const MISBEHAVIOURS: Readonly<Record<string, string>> = {
  'many processes': 'i=0; while [ $i -lt 80 ]; do sleep 600 & i=$((i+1)); done; wait',
  'daemons that left their session': perl(
    `for (1..5) { next if fork; setsid(); exit if fork; sleep 600; exit } sleep 600`,
  ),
  'processes that ignore signals': `trap '' TERM HUP INT QUIT; while true; do sleep 600; done`,
  'a stopped process group': 'sleep 600 & sleep 600 & kill -STOP -1',
  zombies: perl('for (1..40) { exit unless fork } sleep 600'),
  'new namespaces': 'for kind in -m -n -p -i -u -C -U -T; do unshare $kind --fork sleep 600 & done; wait',
  mounts:
    'mount -t tmpfs none /tmp; mount --bind / /tmp; mount -t proc none /tmp; umount /dev/shm; umount -l /proc; sleep 600',
  'inotify watches': perl('for (1..30) { my $n = syscall($inotify, 0); syscall($watch, $n, $tmp, 0xfff) } sleep 600'),
  'memory files': perl(
    'for (1..30) { my $fd = syscall($memfd, $tmp, 0); open my $f, ">&=", $fd; push @f, $f; syswrite $f, "x" x 65536 } sleep 600',
  ),
  sockets:
    perl(`for (1..30) { socket my $s, 2, 1, 0; listen $s, 9; socket my $u, 2, 2, 0; send $u, "x", 0, pack("Sna4x8", 2, 53, "\\x0a\\xd1\\0\\1");
    socket my $l, 1, 1, 0; bind $l, pack("Sa108", 1, "$tmp/l$_"); listen $l, 9; push @s, $s, $u, $l } sleep 600`),
  'connections to the outside': perl(
    `for (1..30) { socket my $s, 2, 1 | 2048, 0; connect $s, pack("Sna4x8", 2, 80, "\\x2c\\0\\x71\\x0a"); push @s, $s } sleep 600`,
  ),
  'queues and shared memory': perl(
    'for (1..9) { syscall($shmget, $_, 65536, 01666); syscall($msgget, $_, 01666); syscall($semget, $_, 9, 01666) } sleep 600',
  ),
  FIFOs: 'for i in 1 2 3 4 5; do mkfifo /tmp/fifo$i; sleep 600 <>/tmp/fifo$i & done; cat /tmp/fifo1',
  'open deleted files':
    'for i in 1 2 3 4 5; do exec 5>/root/gone$i; dd if=/dev/zero bs=1M count=4 >&5; rm /root/gone$i; sleep 600 5>&5 & done; wait',
  'many files in deep folders':
    'd=/root; for i in 1 2 3 4 5 6 7 8 9; do d=$d/deep; mkdir $d; for j in 1 2 3 4 5 6 7 8 9; do echo x >$d/$j; done; done; cd $d; sleep 600',
  'a full disk': 'dd if=/dev/zero of=/root/fill bs=1M; sleep 600',
  'a full tmpfs': 'dd if=/dev/zero of=/dev/shm/fill bs=1M; dd if=/dev/zero of=/scratch/fill bs=1M; sleep 600',
  'more memory than it has': perl('my @x; push @x, "x" x 1048576 for 1..400; sleep 600'),
  'much output': 'while true; do echo 0123456789012345678901234567890123456789; done',
  'signals for its init': 'for signal in HUP INT TERM USR1 USR2 CHLD KILL; do kill -$signal 1; done; sleep 600',
}

/** A Perl program as a shell command. `$inotify` and the like are numbers of system calls. */
function perl(program: string): string {
  const numbers = Object.entries(NUMBERS[process.arch] ?? {}).map(([name, number]) => `$${name} = ${String(number)};`)
  return `perl -e '${numbers.join(' ')} sub setsid { syscall(${process.arch === 'arm64' ? '157' : '112'}) } $tmp = "/tmp"; $SIG{PIPE} = "IGNORE"; ${program}'`
}
