import type { Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import type { RunId } from '../../../domain/ids.ts'
import type { SandboxLogs } from '../../logs/logs.ts'
import { followExecLog, type ExecLogFollower } from './follow-exec-log.ts'

/** The captured output of all runs here that live, on its way into our own logs. */
export type OutputCaptures = {
  /** Follows a run's output; one that is followed already stays so. */
  follow(run: CapturedRun): void
  /** Copies what is still there of a run's output and lets go. */
  finish(run: RunId): Promise<void>
  /** Lets go of all; what comes later is copied by the next worker, from where this one was. */
  close(): Promise<void>
}

export type CapturedRun = {
  readonly run: RunId
  readonly sandbox: Parameters<SandboxLogs['writerOf']>[0]
  readonly folder: string
  readonly positionFile: string
}

/** Follows nothing yet. */
export function makeOutputCaptures(deps: {
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly clock: Clock
  readonly log: Log
}): OutputCaptures {
  const followers = new Map<RunId, ExecLogFollower>()
  return {
    follow({ run, sandbox, folder, positionFile }) {
      if (followers.has(run)) return
      followers.set(run, followExecLog({ folder, positionFile, writer: deps.logs.writerOf(sandbox), ...deps }))
    },
    async finish(run) {
      const follower = followers.get(run)
      followers.delete(run)
      await follower?.close()
    },
    async close() {
      const all = [...followers.values()]
      followers.clear()
      await Promise.all(all.map((follower) => follower.close()))
    },
  }
}
