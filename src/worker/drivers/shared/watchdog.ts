import { spawn, type ChildProcess } from 'node:child_process'
import { join } from 'node:path'
import { interruptibleSleep, type Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'

/**
 * A separate process that kills the sandboxes of this worker when the worker's renew deadline has passed, even while the
 * worker is stopped, stuck or dead. See `watchdog.pl`.
 */
type Watchdog = {
  /** Tells the process that the worker ends. It exits at once when no sandbox runs, and otherwise goes on watching. */
  close(): Promise<void>
}

type WatchdogInput = {
  /** The file of the renew deadline. */
  readonly deadlineFile: string
  /** Where the runs are found, as `watchdog.pl` takes it. */
  readonly runs: `cgroups:${string}` | `vms:${string}`
  readonly clock: Clock
  readonly log: Log
}

const SCRIPT = join(import.meta.dirname, '../../perl/watchdog.pl')
/** How long after its end the process is started again. */
const RESTART_MS = 500
/** How long a shutdown waits for the process to exit. */
const LEAVE_MS = 1_000

/** Starts the process, and restarts it whenever it ends. */
export function startWatchdog(input: WatchdogInput): Watchdog {
  const { deadlineFile, runs, clock, log } = input
  const closing = new AbortController()
  let child: ChildProcess | null = null

  const runOnce = (): Promise<void> =>
    new Promise((resolve) => {
      const begun = spawn('perl', [SCRIPT, deadlineFile, `${deadlineFile}.watch`, runs], {
        stdio: ['pipe', 'ignore', 'inherit'],
        detached: true,
        cwd: '/',
        env: { PATH: process.env['PATH'] ?? '' }, // it outlives the worker, and needs none of its secrets
      })
      child = begun
      begun.stdin.on('error', (error) => {
        log.debug({ err: error }, 'writing to the watchdog failed') // `close` reports its end
      })
      begun.once('error', (error) => {
        log.error({ error }, 'the watchdog of this worker could not be started')
        resolve()
      })
      begun.once('close', () => {
        resolve()
      })
      begun.unref()
    })
  const keepRunning = async (): Promise<void> => {
    while (!closing.signal.aborted) {
      await runOnce()
      if (!closing.signal.aborted) log.warn({}, 'the watchdog of this worker ended; it is started again')
      await interruptibleSleep(clock, RESTART_MS, closing.signal)
    }
  }
  const running = keepRunning()
  return {
    async close() {
      closing.abort(new Error('the worker ends'))
      child?.stdin?.end()
      const waited = new AbortController()
      await Promise.race([running, interruptibleSleep(clock, LEAVE_MS, waited.signal)])
      waited.abort()
    },
  }
}
