import { spawn, type ChildProcess } from 'node:child_process'
import { join } from 'node:path'
import { interruptibleSleep, type Clock, waitAtMost } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'

/**
 * A separate process that kills the sandboxes of this worker when the worker's renew deadline has passed, even while the
 * worker is stopped, stuck or dead. See `watchdog.pl`.
 */
type Watchdog = {
  /** Tells the watchdog that the worker ends. The watchdog then exits once no sandbox is running. */
  close(): Promise<void>
}

type WatchdogInput = {
  /** The path of the renew deadline's file. */
  readonly deadlineFile: string
  /** Where the watchdog finds the runs: an argument of `watchdog.pl`. */
  readonly runs: `cgroups:${string}` | `vms:${string}`
  readonly clock: Clock
  readonly log: Log
}

const SCRIPT = join(import.meta.dirname, '../../perl/watchdog.pl')
/** How long after the watchdog has ended unexpectedly it is started again. */
const RESTART_MS = 500
/** How long a shutdown waits for the watchdog to exit. */
const LEAVE_MS = 1_000

/** Starts the watchdog, and restarts it whenever it ends. */
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
        env: { PATH: process.env['PATH'] ?? '' }, // the watchdog outlives the worker and needs no secret from the worker's environment
      })
      child = begun
      begun.stdin.on('error', (error) => {
        log.debug({ error }, 'writing to the watchdog failed') // `close` reports the watchdog's end
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
      if (!closing.signal.aborted) log.warn({}, 'the watchdog of this worker ended; it will be restarted')
      await interruptibleSleep(clock, RESTART_MS, closing.signal)
    }
  }
  const running = keepRunning()
  return {
    async close() {
      closing.abort(new Error('the worker ends'))
      child?.stdin?.end()
      await waitAtMost(clock, LEAVE_MS, running)
    },
  }
}
