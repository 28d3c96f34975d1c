import { formatActorForLog } from '../../../domain/orgs/caller.ts'
import type { OrgId, SandboxId } from '../../../domain/ids.ts'
import type { Log, LogFields } from '../../../lib/log.ts'
import type { NewEvent } from '../../../store/events/events.ts'
import type { EventObserver } from './transition.ts'

type LifecycleLogDeps = {
  readonly log: Log
  readonly slugOfOrg: (org: OrgId) => Promise<string | null>
  /** Describes what a waiting sandbox lacks. Null: it waits no more. */
  readonly explainWaiting: (sandbox: SandboxId) => Promise<string | null>
  readonly monotonicMs: () => number
}

/** The log's message for each type of event about a sandbox. */
const MESSAGES: Readonly<Partial<Record<NewEvent['event_type'], string>>> = {
  sandbox_created: 'sandbox created',
  sandbox_starting: 'sandbox starts',
  sandbox_waiting: 'sandbox waits for capacity',
  sandbox_placed: 'sandbox placed on a worker',
  sandbox_running: 'sandbox runs',
  sandbox_stopping: 'sandbox stops',
  sandbox_stopped: 'sandbox stopped',
  sandbox_failed: 'sandbox failed',
  sandbox_deleted: 'sandbox deleted',
  sandbox_out_of_memory: 'processes of a sandbox were killed because memory ran out',
}

/** The maximum number of organizations whose slugs are kept. */
const SLUGS_MAX = 10_000
/** At most this many waiting sandboxes in a minute are explained: each explanation reads the queue. */
const EXPLAINED_MAX = 10
const WINDOW_MS = 60_000

/**
 * Writes a line at level `info` for each event in the life of a sandbox, with its sandbox, organization, cause and actor. Events
 * are told once they are committed, in their order. A line that can't be completed is written without the missing field.
 */
export function makeLifecycleLog(deps: LifecycleLogDeps): EventObserver {
  const slugs = new Map<OrgId, string | null>()
  let last: Promise<void> = Promise.resolve()
  let window = { sinceMs: -Infinity, explained: 0 }

  const slugOf = async (org: OrgId): Promise<string | null> => {
    const known = slugs.get(org)
    if (known !== undefined) return known
    if (slugs.size >= SLUGS_MAX) slugs.clear()
    const slug = await deps.slugOfOrg(org)
    slugs.set(org, slug)
    return slug
  }
  const reasonOf = async (event: NewEvent): Promise<string | null> => {
    if (event.event_type !== 'sandbox_waiting') return null
    const nowMs = deps.monotonicMs()
    if (nowMs - window.sinceMs >= WINDOW_MS) window = { sinceMs: nowMs, explained: 0 }
    window.explained += 1
    return window.explained > EXPLAINED_MAX ? null : await deps.explainWaiting(event.payload.sandbox_id as SandboxId) // written by the control plane itself
  }
  const tell = async (event: NewEvent, message: string): Promise<void> => {
    const found = await Promise.allSettled([slugOf(event.org_id), reasonOf(event)])
    const [org, reason] = found.map((one) => (one.status === 'fulfilled' ? one.value : null))
    deps.log.info(fieldsOf(event, { org: org ?? null, reason: reason ?? null }), message)
  }
  return {
    onEvents(events) {
      for (const event of events) {
        const message = MESSAGES[event.event_type]
        if (message !== undefined) last = last.then(() => tell(event, message))
      }
    },
  }
}

/** The fields of an event's line. They contain no secret: an event has none. */
function fieldsOf(
  { payload, org_id, actor }: NewEvent,
  { org, reason }: { readonly org: string | null; readonly reason: string | null },
): LogFields {
  const { facts: _facts, ...rest }: Readonly<Record<string, unknown>> = payload
  return {
    ...rest,
    org_id,
    ...(org === null ? {} : { org }),
    ...(reason === null ? {} : { reason }),
    actor: formatActorForLog(actor),
  }
}
