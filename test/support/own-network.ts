import { spawnSync } from 'node:child_process'
import { test } from 'node:test'

const MARK = 'SANDYARD_TEST_OWN_NETWORK'

/**
 * The default time limit for a test file in its own network, in milliseconds. The longest, `egress.test.ts`, takes 54 s on a quiet
 * machine, and took more than 120 s with a load of 15 on two cores.
 */
const LIMIT_MS = 400_000

/**
 * Whether this process has its own network namespace and its own `/run/netns`, which a test may change.
 *
 * If not, this function runs the test file in a child process that has them, and passes on its output and exit code. It
 * then returns false, and the file must declare no tests. The namespaces end with the child. Where they can't be
 * created, the file is skipped.
 */
export function isInOwnNetwork(file: string, limitMs = LIMIT_MS): boolean {
  return isInNamespaces(file, { limitMs, flags: [], init: [] })
}

/**
 * As `isInOwnNetwork`, and this process and its children are all processes that `/proc` shows. Orphans are reaped by an init
 * program, and all processes end with the test. A test can therefore count them exactly while other tests run.
 */
export function isOnOwnMachine(file: string, limitMs = LIMIT_MS): boolean {
  const flags = ['--pid', '--fork', '--kill-child', '--mount-proc', '--ipc']
  return isInNamespaces(file, { limitMs, flags, init: ['catatonit', '--'] })
}

type OwnNamespaces = {
  readonly limitMs: number
  readonly flags: readonly string[]
  /** The command before the test's own. */
  readonly init: readonly string[]
}

function isInNamespaces(file: string, { limitMs, flags, init }: OwnNamespaces): boolean {
  if (process.env[MARK] === '1') return true
  const lacking = whatLacks()
  if (lacking !== null) {
    test(file, (t) => {
      t.skip(lacking)
    })
    return false
  }
  // A new network namespace may inherit `ip_forward` from the machine. Tests that need forwarding switch it on.
  const forwardsNot = 'echo 0 > /proc/sys/net/ipv4/ip_forward'
  const prepare = `mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && ip link set lo up && ${forwardsNot} && exec "$@"`
  // With `private`, a disk that another test unmounts would stay mounted here, and its loop device attached.
  const unshare = ['--net', '--mount', '--propagation', 'slave', ...flags, 'sh', '-c', prepare, 'sh', ...init]
  const { status, error } = spawnSync('unshare', [...unshare, process.execPath, ...process.execArgv, file], {
    stdio: 'inherit',
    env: { ...process.env, [MARK]: '1' },
    timeout: limitMs,
    killSignal: 'SIGKILL',
  })
  if (error !== undefined) throw error
  process.exitCode = status ?? 1
  return false
}

function whatLacks(): string | null {
  if (process.getuid?.() !== 0) return 'needs root: it makes network namespaces'
  const trial = 'ip link set lo up && nft list ruleset && command -v nsenter'
  const { status, error, stderr } = spawnSync(
    'unshare',
    ['--net', '--mount', '--propagation', 'slave', 'sh', '-c', trial],
    { encoding: 'utf8' },
  )
  if (error !== undefined) return `needs unshare: ${error.message}`
  return status === 0 ? null : `needs network namespaces, iproute2, nftables and nsenter: ${stderr.trim()}`
}
