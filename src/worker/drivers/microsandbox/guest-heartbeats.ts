import { constants } from 'node:fs'
import { open } from 'node:fs/promises'
import { join } from 'node:path'
import type { RunId } from '../../../domain/ids.ts'
import type { Clock } from '../../../lib/clock.ts'
import { errorCodeOf } from '../../../lib/error-code.ts'

/**
 * Reads guests' heartbeats to find idle guests. Each guest's agent writes a heartbeat once a second into a folder that the
 * guest shares with this machine. A guest is in use when the agent counts activity, or while a process that a client started
 * runs (heartbeat.rs, 0.6.14). Idle times are kept in memory and start again when the worker restarts.
 */
type GuestHeartbeats = {
  /** Reads a run's heartbeat, and returns whether the run's last use is at least `timeoutSecs` ago. */
  isIdle(run: RunId, runtimeFolder: string, timeoutSecs: number): Promise<boolean>
  forget(run: RunId): void
}

type Use = { readonly seq: number; readonly atMs: number }

/** Creates a reader that has read no heartbeats yet. */
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

/** How much of a heartbeat file is read. A genuine one has about 300 bytes (0.6.14). */
const HEARTBEAT_LIMIT_BYTES = 4096

type Beat = { readonly activity: number; readonly sessions: number }

/**
 * Reads the heartbeat in a folder. Null if there is none. The guest may create any kind of file at the path, so
 * symlinks, FIFOs and large files are not read.
 */
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
    if (errorCodeOf(error) !== null) return '' // missing, a symlink or a socket: no heartbeat
    throw error
  }
}
