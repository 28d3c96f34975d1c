import { extname, join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { keepRestarting, type ChildOutcome } from '../child/keep-restarting.ts'
import { endOfChild, startChild, tellChild } from '../child/start-child.ts'
import type { ServerEvent, ServerOrder, ServerStart } from './messages.ts'

/** The further server processes that share the port of the API. Disposing them ends them cleanly. */
export type SupervisedServers = {
  /** Resolves once the first one of each number is ready or has ended. */
  readonly begun: Promise<void>
} & AsyncDisposable

type SuperviseInput = {
  readonly clock: Clock
  readonly log: Log
  /** How many processes there are in all, with this one, which has the number 0. */
  readonly processes: number
  readonly start: Omit<ServerStart, 'index'>
}

const PROGRAM = join(import.meta.dirname, `server-process${extname(import.meta.filename)}`)

/** Starts the further server processes, and each of them again whenever it ends. */
export function superviseServers(input: SuperviseInput): SupervisedServers {
  const stopping = new AbortController()
  const indexes = Array.from({ length: input.processes - 1 }, (_, index) => index + 1)
  const kept = indexes.map((index) => superviseServer(input, index, stopping.signal))
  return {
    begun: Promise.all(kept.map(({ begun }) => begun)).then(() => undefined),
    async [Symbol.asyncDispose]() {
      stopping.abort(new Error('the server ends'))
      await Promise.all(kept.map(({ ended }) => ended))
    },
  }
}

type SupervisedServer = { readonly begun: Promise<void>; readonly ended: Promise<void> }

function superviseServer({ clock, log, start }: SuperviseInput, index: number, signal: AbortSignal): SupervisedServer {
  const begun = Promise.withResolvers<void>()

  async function runOnce(): Promise<ChildOutcome> {
    const child = startChild(PROGRAM)
    let isReady = false
    const tell = (order: ServerOrder): void => tellChild(child, order)
    child.on('message', (_event: ServerEvent) => {
      isReady = true
      begun.resolve()
    })
    const onStop = (): void => tell({ kind: 'stop' })
    tell({ kind: 'start', start: { ...start, index } })
    signal.addEventListener('abort', onStop, { once: true })
    const how = await endOfChild(child)
    signal.removeEventListener('abort', onStop)
    begun.resolve()
    if (signal.aborted) return 'over'
    log.error({ how, server_pid: child.pid, index }, 'a server process ended; the others go on')
    return isReady ? 'was ready' : 'was unready'
  }

  const what = `the server process ${String(index)}`
  return { begun: begun.promise, ended: keepRestarting({ clock, log, what }, runOnce, signal) }
}
