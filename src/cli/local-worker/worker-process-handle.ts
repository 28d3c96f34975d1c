import { spawn, type ChildProcess } from 'node:child_process'
import { Socket } from 'node:net'
import { extname, join } from 'node:path'
import type { ConnectNear } from '../../control/streams/near-workers.ts'
import { findMissingPrograms } from '../../worker/drivers/shared/machine.ts'
import type { WorkerEvent, WorkerOrder, WorkerStart } from './messages.ts'
import { makeNearConnections } from './near-connections.ts'
import { environmentWithoutSettings } from './worker-settings.ts'

/** A process of the worker of `up`. */
export type WorkerProcess = {
  readonly pid: number | undefined
  /** Resolves with how the process ended, after its last message. */
  readonly ended: Promise<string>
  /** Asks it to end cleanly. */
  stop(): void
  tellFingerprint(fingerprint: string | null): void
  /** Reads its metrics in the text format. Resolves with an empty text when it ends before it answers. */
  readMetrics(): Promise<string>
}

type Callbacks = {
  /** The driver is open. `connect` is null if it opens no connections to sandboxes. */
  readonly onOpened: (connect: ConnectNear | null) => void
  readonly onReady: () => void
  /** No driver works on this machine. The process ends. */
  readonly onUnusable: (message: string) => void
}

/** Node keeps compiled code there, as cli.ts says. By a variable, it also finds the program's own file there. */
const COMPILE_CACHE = join(import.meta.dirname, '..', '..', '..', '.setup', 'compile-cache')
const PROGRAM = join(import.meta.dirname, `worker-process${extname(import.meta.filename)}`)

/** Starts a process of the worker, with nothing secret on its command line or in its environment. */
export function startWorkerProcess(start: WorkerStart, { onOpened, onReady, onUnusable }: Callbacks): WorkerProcess {
  const [file = '', ...args] = workerCommand()
  const child = spawn(file, args, {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    serialization: 'advanced',
    env: { ...environmentWithoutSettings(process.env), NODE_COMPILE_CACHE: COMPILE_CACHE },
    detached: true, // keeps Ctrl-C in the terminal of `up` from it
  })
  const tell = (order: WorkerOrder): void => {
    if (child.connected) child.send(order, () => undefined) // if it has ended, `ended` resolves
  }
  const near = makeNearConnections(tell)
  const scrapes = new Map<number, (text: string) => void>()
  let lastScrape = 0
  let { fingerprint } = start
  child.on('message', (message, handle) => {
    const event = message as WorkerEvent // sent by worker-process.ts
    if (event.kind === 'opened') onOpened(event.connects ? near.connect : null)
    else if (event.kind === 'ready') onReady()
    else if (event.kind === 'unusable') onUnusable(event.message)
    else if (event.kind === 'metrics') {
      scrapes.get(event.id)?.(event.text)
      scrapes.delete(event.id)
    } else near.receive(event, handle instanceof Socket ? handle : null)
  })
  tell({ kind: 'start', start })
  return {
    pid: child.pid,
    ended: endOf(child).finally(() => {
      near.end()
      for (const answer of scrapes.values()) answer('')
    }),
    stop: () => tell({ kind: 'stop' }),
    tellFingerprint(next) {
      if (next === fingerprint) return
      fingerprint = next
      tell({ kind: 'fingerprint', fingerprint })
    },
    readMetrics() {
      if (!child.connected) return Promise.resolve('')
      const id = ++lastScrape
      return new Promise((resolve) => {
        scrapes.set(id, resolve)
        tell({ kind: 'metrics', id })
      })
    },
  }
}

/** Resolves with how a process ended, after its last message. */
async function endOf(child: ChildProcess): Promise<string> {
  const disconnected = new Promise<void>((resolve) => child.once('disconnect', () => resolve()))
  const how = await new Promise<string>((resolve) => {
    child.once('exit', (code, signal) => resolve(signal ?? `exit code ${String(code)}`))
    child.on('error', (error) => {
      if (child.pid === undefined) resolve(error.message) // it could not be started
    })
  })
  if (child.pid !== undefined && child.connected) await disconnected
  return how
}

/**
 * The command line of the process. Linux kills the process when `up` dies, however `up` dies and whatever the process does then: it
 * would use what the next `up` uses.
 */
function workerCommand(): readonly string[] {
  const program = [process.execPath, ...process.execArgv, PROGRAM]
  if (process.platform !== 'linux' || findMissingPrograms(['setpriv']).length > 0) return program
  return ['setpriv', '--pdeathsig', 'KILL', ...program]
}
