import { mkdir, readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type SandboxId } from '../../domain/ids.ts'
import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { LogWriter, SandboxLogs } from './logs.ts'
import { readLog } from './read-log.ts'
import { makeSandboxLog, type SandboxLog } from './sandbox-log.ts'

type LogStoreOptions = {
  /** The folder of all logs. Only this store writes to it. Created when missing, with access for the worker alone. */
  readonly dir: string
  readonly limits: LogLimits
  readonly clock: Clock
  readonly log: Log
}

export type LogLimits = {
  /** The maximum size of a sandbox's log. Beyond it, the oldest entries are deleted. */
  readonly sandboxBytes: number
  /** How long a log without an open run is kept after its last entry. */
  readonly retentionMs: number
}

/** How often idle files are closed. */
const IDLE_CHECK_MS = 5_000
/**
 * Each time after this many idle checks, expired logs are deleted: every hour, and for the first time an hour after the
 * start.
 */
const SWEEP_EVERY_CHECKS = 720

/** Opens the logs of a worker: a folder for each sandbox, named by its id. */
export async function openSandboxLogs({ dir, limits, clock, log }: LogStoreOptions): Promise<SandboxLogs> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const closing = new AbortController()
  const open = new Map<SandboxId, SandboxLog>()

  const get = (sandbox: SandboxId): SandboxLog => {
    let found = open.get(sandbox)
    if (found === undefined) {
      found = makeSandboxLog({ path: folderOf(sandbox), limitBytes: limits.sandboxBytes, clock, log })
      open.set(sandbox, found)
    }
    return found
  }
  const folderOf = (sandbox: SandboxId): string => {
    if (!/^[\w-]+$/.test(sandbox)) throw new Error(`${JSON.stringify(sandbox)} can't name a folder`)
    return join(dir, sandbox)
  }
  const discard = async (sandbox: SandboxId): Promise<void> => {
    await get(sandbox).delete()
    open.delete(sandbox)
  }
  const closeIdleLogs = async (): Promise<void> => {
    for (const [sandbox, one] of open) if (await one.closeIfIdle()) open.delete(sandbox)
  }
  const sweep = async (): Promise<void> => {
    for (const name of await readdir(dir)) {
      const sandbox = asId<SandboxId>(name)
      if (open.has(sandbox)) continue
      const endedMs = await lastWriteMs(join(dir, name))
      const isOld = clock.now().getTime() - endedMs > limits.retentionMs
      if (isOld && !open.has(sandbox)) await discard(sandbox) // the log was not opened while `isOld` was determined
    }
  }
  const runMaintenance = async (): Promise<void> => {
    for (let checks = 1; !closing.signal.aborted; checks++) {
      await interruptibleSleep(clock, IDLE_CHECK_MS, closing.signal)
      try {
        await closeIdleLogs()
        if (checks % SWEEP_EVERY_CHECKS === 0) await sweep()
      } catch (error) {
        log.warn({ error }, 'the maintenance of logs failed; will retry')
      }
    }
  }
  const maintenance = runMaintenance()

  return {
    writerOf: (sandbox) => reopeningWriter(() => get(sandbox)),
    async *read(sandbox, query, signal) {
      const one = get(sandbox)
      const removeReader = one.addReader()
      try {
        yield* readLog(one, query, { clock, signal })
      } finally {
        removeReader()
      }
    },
    isLive: (sandbox) => open.get(sandbox)?.isLive ?? false,
    discard,
    async close() {
      closing.abort(new Error('the logs are closed'))
      await maintenance
      await Promise.all([...open.values()].map((one) => one.close()))
    },
  }
}

/**
 * Creates a writer that calls `get` for the open log at each use. Between two uses the log may have been closed. A
 * sandbox therefore never has two open logs.
 */
function reopeningWriter(get: () => SandboxLog): LogWriter {
  return {
    openRun: () => {
      get().openRun()
    },
    closeRun: () => {
      get().closeRun()
    },
    system: (text) => {
      get().system(text)
    },
    stream: (source) => get().stream(source),
  }
}

/** The modification time of the newest file in a folder. 0 for an empty folder. */
async function lastWriteMs(folder: string): Promise<number> {
  const times = await Promise.all((await readdir(folder)).map(async (name) => (await stat(join(folder, name))).mtimeMs))
  return Math.max(0, ...times)
}
