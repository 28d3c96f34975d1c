import { spawnSync } from 'node:child_process'

/** An apt-get that finds the package database locked (unattended upgrades) waits this long. */
const lockSeconds = 120
/** Longest for one apt-get; 3 MB are fetched, in 5 to 20 s where this was measured (2026-11). */
const limitMs = 10 * 60_000

/** Runs apt-get and gives what it said when it failed, undefined when it did what was asked. */
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

/** As aptGet, and when that fails once more after fetching the package lists: they may be absent (a container) or old. */
export function aptGetFresh(args, options) {
  const first = aptGet(args, options)
  return first === undefined ? undefined : (aptGet(['update']) ?? aptGet(args, options))
}
