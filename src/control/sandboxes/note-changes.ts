import type { SandboxId } from '../../domain/ids.ts'
import type { BaseDeps } from '../deps.ts'
import { sandboxTopic } from '../topics.ts'

/** Notes whether a sandbox changes. */
export type ChangeNote = {
  /** Begins to watch a sandbox, in place of the one before. */
  readonly of: (id: SandboxId) => void
  /** Whether a sandbox changed while it was watched. */
  readonly hasAny: () => boolean
  readonly end: () => void
}

/**
 * Makes a note that a create begins just before its commit and ends when its wait begins. Without a change, the wait needs no read.
 * With several server processes, another one may place and start the sandbox before this one learns that it is committed.
 */
export function noteChanges(notifications: BaseDeps['notifications']): ChangeNote {
  let hasChanged = false
  let unsubscribe = (): void => undefined
  return {
    of: (id) => {
      unsubscribe()
      unsubscribe = notifications.subscribe(sandboxTopic(id), () => {
        hasChanged = true
      })
    },
    hasAny: () => hasChanged,
    end: () => {
      unsubscribe()
    },
  }
}
