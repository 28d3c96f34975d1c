import { spawnSync } from 'node:child_process'

/** How long apt-get waits for a locked package database, for example during unattended upgrades. */
const lockSeconds = 120
/** The time limit of one apt-get run. Fetching the 3 MB took 5 to 20 s (2026-11). */
const limitMs = 10 * 60_000

/** Runs apt-get. Returns its output when it fails, and undefined when it succeeds. */
export function aptGet(args, { cwd } = {}) {
  const { status, signal, error, stdout, stderr } = spawnSync(
    'apt-get',
    ['-q', '-o', `DPkg::Lock::Timeout=${lockSeconds}`, ...args],
    {
      cwd,
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
      stdio: ['ignore', 'pipe', 'pipe'],
      encoding: 'utf8',
      timeout: limitMs,
    },
  )
  if (status === 0) return undefined
  return `${stdout ?? ''}${stderr ?? ''}`.trim() || (error?.message ?? `ended by ${signal ?? `exit code ${status}`}`)
}

/**
 * Runs apt-get as `aptGet` does. After a failure, fetches the package lists and retries, because the lists may be old,
 * or missing as in a new container.
 */
export function aptGetFresh(args, options) {
  const first = aptGet(args, options)
  return first === undefined ? undefined : (aptGet(['update']) ?? aptGet(args, options))
}
