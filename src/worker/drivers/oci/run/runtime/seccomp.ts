/**
 * Returns the seccomp profile of a sandbox in the OCI runtime's format. It is an allow list. A call on neither list
 * fails with `ENOSYS`, as on an older kernel, so that programs use a fallback. A call in `REFUSED` fails with `EPERM`.
 * Source: syscalls(2) and the manual page of each call, kernel 6.18, reviewed 2026-11.
 */
export function seccompProfile(architecture: NodeJS.Architecture): object {
  return {
    defaultAction: 'SCMP_ACT_ERRNO',
    defaultErrnoRet: ENOSYS,
    // Allows only the native architecture, because 32-bit system calls would double the kernel's attack surface.
    architectures: [architecture === 'arm64' ? 'SCMP_ARCH_AARCH64' : 'SCMP_ARCH_X86_64'],
    syscalls: [
      { names: ALLOWED, action: 'SCMP_ACT_ALLOW' },
      { names: REFUSED, action: 'SCMP_ACT_ERRNO', errnoRet: EPERM },
      {
        names: ['clone'],
        action: 'SCMP_ACT_ALLOW',
        args: [{ index: 0, value: NAMESPACE_FLAGS, valueTwo: 0, op: 'SCMP_CMP_MASKED_EQ' }],
      },
      ...PERSONALITIES.map((value) => ({
        names: ['personality'],
        action: 'SCMP_ACT_ALLOW',
        args: [{ index: 0, value, op: 'SCMP_CMP_EQ' }],
      })),
      ...SOCKET_FAMILIES.map((value) => ({
        names: ['socket'],
        action: 'SCMP_ACT_ALLOW',
        args: [{ index: 0, value, op: 'SCMP_CMP_EQ' }],
      })),
      ...otherThan([BTRFS_MAGIC], { firstBit: 8, bits: 8 }).map((arg) => ({
        names: ['ioctl'],
        action: 'SCMP_ACT_ALLOW',
        args: [{ index: 1, ...arg }],
      })),
      ...CLONING_IOCTLS.map((value) => ({
        names: ['ioctl'],
        action: 'SCMP_ACT_ERRNO',
        errnoRet: EOPNOTSUPP,
        args: [{ index: 1, value, op: 'SCMP_CMP_EQ' }],
      })),
      ...otherThan([IPV6_LEVEL], { firstBit: 0, bits: 6 }).map((level) => ({
        names: ['setsockopt'],
        action: 'SCMP_ACT_ALLOW',
        args: [{ index: 1, ...level }],
      })),
      ...otherThan(IPV6_JOINS, { firstBit: 0, bits: 6 }).map((option) => ({
        names: ['setsockopt'],
        action: 'SCMP_ACT_ALLOW',
        args: [AT_IPV6_LEVEL, { index: 2, ...option }],
      })),
      ...IPV6_JOINS.map((option) => ({
        names: ['setsockopt'],
        action: 'SCMP_ACT_ERRNO',
        errnoRet: ENODEV,
        args: [AT_IPV6_LEVEL, { index: 2, value: option, op: 'SCMP_CMP_EQ' }],
      })),
    ],
  }
}

const EPERM = 1
const ENODEV = 19
const ENOSYS = 38
const EOPNOTSUPP = 95

/** Every CLONE_NEW… flag of clone(2). clone3 is not allowed, because it hides its flags from the filter. */
const NAMESPACE_FLAGS = 0x7e020000

/**
 * The allowed personalities: Linux, 32-bit layout, no address randomization (for debuggers), both, and the query for the
 * current one.
 */
const PERSONALITIES = [0, 0x8, 0x40000, 0x40008, 0xffffffff] as const

/**
 * The allowed socket families: AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK. AF_VSOCK, which reaches the hypervisor, and AF_ALG
 * are not allowed.
 */
const SOCKET_FAMILIES = [1, 2, 10, 16] as const

/**
 * The number in bits 8 to 15 of every btrfs ioctl request (ioctl(2), `_IOC_TYPE`). The filter refuses these requests. On btrfs,
 * any user may create a subvolume in a writable folder, and its content would count against no volume's cap.
 */
const BTRFS_MAGIC = 0x94

/**
 * FICLONE, FICLONERANGE and FIDEDUPERANGE contain `BTRFS_MAGIC`. They fail as on a file system that can't share blocks, so that
 * programs copy instead. btrfs checks no cap when a file shares the blocks of another volume.
 */
const CLONING_IOCTLS = [0x40049409, 0x4020940d, 0xc0189436] as const

/** The level of the options of IPv6 (IPPROTO_IPV6). */
const IPV6_LEVEL = 41
const AT_IPV6_LEVEL = { index: 1, value: 0xffffffff, valueTwo: IPV6_LEVEL, op: 'SCMP_CMP_MASKED_EQ' } as const

/**
 * IPV6_ADD_MEMBERSHIP, MCAST_JOIN_GROUP and MCAST_JOIN_SOURCE_GROUP. They fail as on a machine without an IPv6 network, which a
 * sandbox has not either. The kernel charges the groups of a socket to no cgroup, and one socket may have 2,340 (2026-11).
 */
const IPV6_JOINS = [20, 42, 46] as const

type MaskedEqual = { readonly value: number; readonly valueTwo: number; readonly op: 'SCMP_CMP_MASKED_EQ' }

/**
 * Returns comparisons one of which is true for each argument that has none of the numbers in the given bits. A filter sees 64 bits
 * of an argument, and the kernel uses 32. So `SCMP_CMP_NE` would be true for a refused number with another bit above these.
 */
function otherThan(
  refused: readonly number[],
  { firstBit, bits }: { readonly firstBit: number; readonly bits: number },
): readonly MaskedEqual[] {
  /** The comparisons for the numbers with this prefix: the bits that are in `mask`. `among` are the refused numbers with it. */
  const within = (among: readonly number[], mask: number, prefix: number): readonly MaskedEqual[] => {
    if (among.length === 0) return [{ value: mask << firstBit, valueTwo: prefix << firstBit, op: 'SCMP_CMP_MASKED_EQ' }]
    const next = ((1 << bits) - 1 - mask + 1) >> 1 // the highest bit that is not in the mask
    if (next === 0) return []
    return [0, next].flatMap((bit) =>
      within(
        among.filter((number) => (number & next) === bit),
        mask | next,
        prefix | bit,
      ),
    )
  }
  return within(refused, 0, 0)
}

/**
 * The allowed calls. Asynchronous I/O (`io_setup` and what needs it) is missing: the machine has one count of its requests for all
 * users (`fs.aio-max-nr`), so one sandbox could take them all. Databases then use ordinary reads and writes. `copy_file_range` is missing
 * because it clones (see `CLONING_IOCTLS`).
 */
// prettier-ignore
const ALLOWED: readonly string[] = [
  // files
  'access', 'cachestat', 'chdir', 'chmod', 'chown', 'close', 'close_range', 'creat', 'dup', 'dup2',
  'dup3', 'faccessat', 'faccessat2', 'fadvise64', 'fallocate', 'fchdir', 'fchmod', 'fchmodat', 'fchmodat2', 'fchown',
  'fchownat', 'fcntl', 'fdatasync', 'fgetxattr', 'flistxattr', 'flock', 'fremovexattr', 'fsetxattr', 'fstat',
  'fstatfs', 'fsync', 'ftruncate', 'futimesat', 'getcwd', 'getdents', 'getdents64', 'getxattr', 'getxattrat',
  'inotify_add_watch', 'inotify_init', 'inotify_init1', 'inotify_rm_watch', 'lchown', 'lgetxattr', 'link',
  'linkat', 'listxattr', 'listxattrat', 'llistxattr', 'lremovexattr', 'lseek', 'lsetxattr', 'lstat', 'mkdir',
  'mkdirat', 'mknod', 'mknodat', 'newfstatat', 'open', 'openat', 'openat2', 'pread64', 'preadv', 'preadv2',
  'pwrite64', 'pwritev', 'pwritev2', 'read', 'readahead', 'readlink', 'readlinkat', 'readv', 'removexattr',
  'removexattrat', 'rename', 'renameat', 'renameat2', 'rmdir', 'sendfile', 'setxattr', 'setxattrat', 'splice', 'stat',
  'statfs', 'statx', 'symlink', 'symlinkat', 'sync', 'sync_file_range', 'syncfs', 'tee', 'truncate', 'umask',
  'unlink', 'unlinkat', 'ustat', 'utime', 'utimensat', 'utimes', 'vmsplice', 'write', 'writev', 'chroot',
  'landlock_add_rule', 'landlock_create_ruleset', 'landlock_restrict_self',
  // memory
  'brk', 'get_mempolicy', 'madvise', 'map_shadow_stack', 'membarrier', 'memfd_create', 'memfd_secret', 'mincore',
  'mlock', 'mlock2', 'mlockall', 'mmap', 'mprotect', 'mremap', 'mseal', 'msync', 'munlock', 'munlockall', 'munmap',
  'pkey_alloc', 'pkey_free', 'pkey_mprotect', 'process_madvise', 'process_mrelease', 'remap_file_pages',
  // processes, users, limits
  'alarm', 'arch_prctl', 'capget', 'capset', 'execve', 'execveat', 'exit', 'exit_group', 'fork', 'getegid', 'geteuid',
  'getgid', 'getgroups', 'getpgid', 'getpgrp', 'getpid', 'getppid', 'getpriority', 'getresgid', 'getresuid',
  'getrlimit', 'getrusage', 'getsid', 'gettid', 'getuid', 'ioprio_get', 'ioprio_set', 'kill', 'pause', 'pidfd_getfd',
  'pidfd_open', 'pidfd_send_signal', 'prctl', 'prlimit64', 'process_vm_readv', 'process_vm_writev', 'ptrace',
  'seccomp', 'setfsgid', 'setfsuid', 'setgid', 'setgroups', 'setpgid', 'setpriority', 'setregid', 'setresgid',
  'setresuid', 'setreuid', 'setrlimit', 'setsid', 'setuid', 'sysinfo', 'tgkill', 'times', 'tkill', 'uname', 'vfork',
  'wait4', 'waitid', 'getcpu', 'rt_sigaction', 'rt_sigpending', 'rt_sigprocmask', 'rt_sigqueueinfo', 'rt_sigreturn',
  'rt_sigsuspend', 'rt_sigtimedwait', 'rt_tgsigqueueinfo', 'sigaltstack', 'signalfd', 'signalfd4', 'restart_syscall',
  'rseq', 'set_robust_list', 'get_robust_list', 'set_tid_address', 'set_thread_area', 'get_thread_area', 'futex',
  'futex_requeue', 'futex_wait', 'futex_waitv', 'futex_wake', 'sched_get_priority_max', 'sched_get_priority_min',
  'sched_getaffinity', 'sched_getattr', 'sched_getparam', 'sched_getscheduler', 'sched_rr_get_interval',
  'sched_setaffinity', 'sched_setattr', 'sched_setparam', 'sched_setscheduler', 'sched_yield',
  // time
  'clock_getres', 'clock_gettime', 'clock_nanosleep', 'getitimer', 'gettimeofday', 'nanosleep', 'setitimer', 'time',
  'timer_create', 'timer_delete', 'timer_getoverrun', 'timer_gettime', 'timer_settime', 'timerfd_create',
  'timerfd_gettime', 'timerfd_settime', 'adjtimex', 'clock_adjtime',
  // events, sockets and pipes
  'accept', 'accept4', 'bind', 'connect', 'epoll_create', 'epoll_create1', 'epoll_ctl', 'epoll_pwait', 'epoll_pwait2',
  'epoll_wait', 'eventfd', 'eventfd2', 'getpeername', 'getrandom', 'getsockname', 'getsockopt', 'listen', 'pipe',
  'pipe2', 'poll', 'ppoll', 'pselect6', 'recvfrom', 'recvmmsg', 'recvmsg', 'select', 'sendmmsg', 'sendmsg', 'sendto',
  'shutdown', 'socketpair', 'mq_getsetattr', 'mq_notify', 'mq_open', 'mq_timedreceive', 'mq_timedsend',
  'mq_unlink', 'msgctl', 'msgget', 'msgrcv', 'msgsnd', 'semctl', 'semget', 'semop', 'semtimedop', 'shmat', 'shmctl',
  'shmdt', 'shmget',
]

/**
 * Calls that fail with `EPERM`, so that programs report "not permitted" instead of "unknown". Each of them affects more than
 * the sandbox.
 */
// prettier-ignore
const REFUSED: readonly string[] = [
  // mounts and roots
  'mount', 'umount', 'umount2', 'mount_setattr', 'move_mount', 'open_tree', 'open_tree_attr', 'fsopen', 'fsconfig',
  'fsmount', 'fspick', 'pivot_root', 'statmount', 'listmount',
  // namespaces
  'unshare', 'setns',
  // kernel keys, programs, tracing, faults: large attack surface for little use
  'add_key', 'keyctl', 'request_key', 'bpf', 'perf_event_open', 'userfaultfd', 'io_uring_setup', 'io_uring_enter',
  'io_uring_register', 'fanotify_init', 'fanotify_mark', 'lookup_dcookie', 'kcmp',
  // opening files by handle bypasses every path check
  'open_by_handle_at', 'name_to_handle_at',
  // the machine itself
  'reboot', 'kexec_load', 'kexec_file_load', 'init_module', 'finit_module', 'delete_module', 'create_module',
  'swapon', 'swapoff', 'syslog', 'acct', 'quotactl', 'quotactl_fd', 'nfsservctl', 'vhangup', 'sethostname',
  'setdomainname', 'clock_settime', 'settimeofday', 'stime', 'iopl', 'ioperm', 'modify_ldt', 'mbind', 'set_mempolicy',
  'set_mempolicy_home_node', 'migrate_pages', 'move_pages', 'uselib', 'sysfs', '_sysctl',
]
