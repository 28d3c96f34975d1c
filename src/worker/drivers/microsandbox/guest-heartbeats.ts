import { constants } from 'node:fs'
import { open } from 'node:fs/promises'
import { join } from 'node:path'
import type { RunId } from '../../../domain/ids.ts'
import type { Clock } from '../../../lib/clock.ts'

/**
 * Whether guests are in use, by what their agents say: each writes a heartbeat into a folder that it shares with this
 * machine, once a second. Use is what the agent counts as activity, and a process that a client started and that is not
 * over (heartbeat.rs, 0.6.14; agent protocol, section 10). Kept in memory: after a restart of the worker the time of a
 * run starts anew.
 */
export type GuestHeartbeats = {
  /** Looks at a run's heartbeat; answers whether its last use is as long ago as `timeoutSecs`. */
  isIdle(run: RunId, runtimeFolder: string, timeoutSecs: number): Promise<boolean>
  forget(run: RunId): void
}

type Use = { readonly seq: number; readonly atMs: number }

/** Heartbeats by a clock. */
export function makeGuestHeartbeats(clock: Clock): GuestHeartbeats {
  const uses = new Map<RunId, Use>()
  return {
    async isIdle(run, folder, timeoutSecs) {
      const beat = await readBeat(folder)
      const known = uses.get(run)
      const nowMs = clock.monotonicMs()
      if (known === undefined || beat === null || beat.sessions > 0 || beat.activity !== known.seq) {
        uses.set(run, { seq: beat?.activity ?? known?.seq ?? -1, atMs: nowMs })
        return false
      }
      return nowMs - known.atMs >= timeoutSecs * 1000
    },
    forget(run) {
      uses.delete(run)
    },
  }
}

/** A heartbeat has some 300 bytes (0.6.14). */
const HEARTBEAT_LIMIT_BYTES = 4096

type Beat = { readonly activity: number; readonly sessions: number }

/** Null for none. The guest may put anything there: what is no small file is not followed, waited for or read. */
async function readBeat(folder: string): Promise<Beat | null> {
  const text = await readSmallFile(join(folder, 'heartbeat.json'))
  const activity = /"activity_seq"\s*:\s*(\d{1,15})\b/.exec(text)?.[1]
  const sessions = /"active_exec_sessions"\s*:\s*(\d{1,15})\b/.exec(text)?.[1]
  return activity === undefined || sessions === undefined
    ? null
    : { activity: Number(activity), sessions: Number(sessions) }
}

async function readSmallFile(path: string): Promise<string> {
  try {
    await using handle = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK)
    if (!(await handle.stat()).isFile()) return ''
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(HEARTBEAT_LIMIT_BYTES), 0, HEARTBEAT_LIMIT_BYTES, 0)
    return buffer.toString('utf8', 0, bytesRead)
  } catch (error) {
    if (error instanceof Error && 'code' in error) return '' // absent, a symlink, a socket: no heartbeat
    throw error
  }
}
