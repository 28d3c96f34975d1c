import { join } from 'node:path'
import type { RunId } from '../../../domain/ids.ts'
import { interruptibleSleep, type Clock } from '../../../lib/clock.ts'
import { readJson, writeJsonAtomically } from '../../../lib/files.ts'
import type { Log } from '../../../lib/log.ts'
import type { ApiClient } from '../../kubernetes/api-client.ts'
import { isApiError } from '../../kubernetes/api-error.ts'
import type { LogStream, SandboxLogs } from '../../logs/logs.ts'
import type { PodRunRecord } from './context.ts'
import { podNameOf, SANDBOX_CONTAINER } from './pod.ts'

/** Copies the output of workloads into the logs of their sandboxes. The kubelet's own log is gone with its Pod. */
export type PodLogs = {
  /** Begins to follow a run's output, after what an earlier process has copied. Does nothing if it is followed already. */
  begin(record: Pick<PodRunRecord, 'run_id' | 'sandbox_id' | 'namespace'>): void
  /** Waits for the end of the output, at most for some seconds, and stops following it. */
  finish(run: RunId): Promise<void>
  close(): Promise<void>
}

type PodLogsInput = {
  readonly client: Pick<ApiClient, 'open'>
  /** The folder of a run, for the position. */
  readonly folderOf: (run: RunId) => string
  /** Whether the run's Pod still runs, so that more output may come. */
  readonly isRunning: (run: RunId) => boolean
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly clock: Clock
  readonly log: Log
}

/** A position in an output: the time of the last line that was copied, and how many lines with that time were. */
type Position = { readonly time: string; readonly lines: number }

const RETRY_MS = 500
/** How long the end of an output may take to arrive after its Pod's end. */
const FINISH_MS = 3_000
/** How often the position is stored while output arrives. A killed worker copies at most so much twice. */
const STORE_MS = 500
/** A line without an end is given on in pieces of this size. */
const PIECE_BYTES = 64 * 1024

/** Creates the copies, which follow no run yet. */
export function makePodLogs(input: PodLogsInput): PodLogs {
  const followers = new Map<RunId, { readonly done: Promise<void>; readonly abort: AbortController }>()
  return {
    begin({ run_id, sandbox_id, namespace }) {
      if (followers.has(run_id)) return
      const abort = new AbortController()
      const stream = input.logs.writerOf(sandbox_id).stream('output')
      followers.set(run_id, { done: follow(input, { run: run_id, namespace, stream, signal: abort.signal }), abort })
    },
    async finish(run) {
      const follower = followers.get(run)
      if (follower === undefined) return
      const timer = setTimeout(() => {
        follower.abort.abort()
      }, FINISH_MS)
      await follower.done
      clearTimeout(timer)
      followers.delete(run)
    },
    async close() {
      for (const { abort } of followers.values()) abort.abort()
      await Promise.all([...followers.values()].map(({ done }) => done))
      followers.clear()
    },
  }
}

type Followed = {
  readonly run: RunId
  readonly namespace: string
  readonly stream: LogStream
  readonly signal: AbortSignal
}

/** Follows one output to its end. Never rejects. */
async function follow(input: PodLogsInput, { run, namespace, stream, signal }: Followed): Promise<void> {
  const { client, folderOf, clock, log } = input
  const file = join(folderOf(run), 'output.json')
  let position = await readJson<Position>(file)
  let stored = position
  let storedAtMs = clock.monotonicMs()
  const store = async (): Promise<void> => {
    if (position === null || position === stored) return
    stored = position
    storedAtMs = clock.monotonicMs()
    await writeJsonAtomically(file, position)
  }
  const copy = async (): Promise<void> => {
    const query = new URLSearchParams({ container: SANDBOX_CONTAINER, follow: 'true', timestamps: 'true' })
    if (position !== null) query.set('sinceTime', position.time) // to the second, so lines come again
    const path = `/api/v1/namespaces/${namespace}/pods/${podNameOf(run)}/log?${query.toString()}`
    const reply = await client.open(path, signal)
    const lines = makeLineCutter(position)
    for await (const chunk of reply) {
      for (const piece of lines.cut(chunk as Buffer)) stream.write(piece) // a stream without an encoding has buffers
      position = lines.position() ?? position
      if (clock.monotonicMs() - storedAtMs > STORE_MS) await store()
    }
  }
  for (let isOver = false; !isOver && !signal.aborted;) {
    try {
      await copy()
      isOver = !input.isRunning(run)
    } catch (error) {
      isOver = isApiError(error, 404)
      if (!isOver && !signal.aborted && !isApiError(error, 400))
        log.debug({ error, run }, "following a Pod's output failed")
      if (!isOver) await interruptibleSleep(clock, RETRY_MS, signal)
    }
  }
  stream.end()
  await store().catch((error: unknown) => {
    log.warn({ error, run }, "the position in a Pod's output could not be stored")
  })
}

/** Removes the times before lines, and the lines up to a position. */
export function makeLineCutter(from: Position | null): {
  cut(chunk: Buffer): readonly Buffer[]
  position(): Position | null
} {
  let held: Buffer = Buffer.alloc(0)
  let position: Position | null = null
  let at: Position = { time: '', lines: 0 }
  /** Whether the text of the current line is passed on. Null before its time is complete. */
  let passes: boolean | null = null

  const begin = (time: string): boolean => {
    at = time === at.time ? { time, lines: at.lines + 1 } : { time, lines: 1 }
    const isKnown = from !== null && (time < from.time || (time === from.time && at.lines <= from.lines))
    if (!isKnown) position = at
    return !isKnown
  }
  return {
    cut(chunk) {
      const pieces: Buffer[] = []
      let data = held.length === 0 ? chunk : Buffer.concat([held, chunk])
      for (;;) {
        if (passes === null) {
          const space = data.indexOf(0x20)
          if (space === -1) break
          passes = begin(data.toString('latin1', 0, space))
          data = data.subarray(space + 1)
        }
        const feed = data.indexOf(0x0a)
        if (feed === -1 && data.length < PIECE_BYTES) break
        const end = feed === -1 ? data.length : feed + 1
        if (passes) pieces.push(data.subarray(0, end))
        data = data.subarray(end)
        if (feed !== -1) passes = null
      }
      held = Buffer.from(data)
      return pieces
    },
    position: () => position,
  }
}
