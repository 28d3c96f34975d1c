import { spawnSync } from 'node:child_process'
import { test } from 'node:test'

const MARK = 'SANDYARD_TEST_OWN_NETWORK'

/** The default time limit for a test file in its own network, in milliseconds. */
const LIMIT_MS = 120_000

/**
 * Whether this process has its own network and network namespace names, where a test may change anything.
 *
 * When it hasn't, this runs the test file again in such a place, passes its results on as those of this process, and
 * returns false: the file then declares no tests. Everything made there ends with its processes. Where that isn't
 * possible, the tests are skipped.
 */
export function isInOwnNetwork(file: string, limitMs = LIMIT_MS): boolean {
  if (process.env[MARK] === '1') return true
  const lacking = whatLacks()
  if (lacking !== null) {
    test(file, (t) => {
      t.skip(lacking)
    })
    return false
  }
  // A new network namespace may inherit this setting from the machine. Each test sets what it needs.
  const forwardsNot = 'echo 0 > /proc/sys/net/ipv4/ip_forward'
  const prepare = `mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && ip link set lo up && ${forwardsNot} && exec "$@"`
  const unshare = ['--net', '--mount', '--propagation', 'private', 'sh', '-c', prepare, 'sh']
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
  const { status, error, stderr } = spawnSync('unshare', ['--net', '--mount', 'sh', '-c', trial], { encoding: 'utf8' })
  if (error !== undefined) return `needs unshare: ${error.message}`
  return status === 0 ? null : `needs network namespaces, iproute2, nftables and nsenter: ${stderr.trim()}`
}
