import type { Actor } from '../../domain/orgs/caller.ts'
import type { EventId, OrgId } from '../../domain/ids.ts'
import { EVENT_TYPES, type TypedEvent } from '../../domain/events/event-types.ts'
import { NIL_UUID } from '../../lib/uuid.ts'
import type { Queryable } from '../postgres/database.ts'
import { orderedIdOfAny } from './event-ids.ts'
import type { PruneStep, StepResult } from '../postgres/prune-step.ts'

/** An audit event to write. It is written in the transaction of the change that it describes. */
export type NewEvent = TypedEvent & {
  readonly id: string
  readonly org_id: OrgId
  readonly timestamp: Date
  readonly sandbox_id: string | null
  readonly actor: Actor
}

/** An audit event as clients read it. */
export type EventRow = {
  readonly id: EventId
  readonly org_id: OrgId
  readonly timestamp: Date
  readonly category: string
  readonly event_type: string
  readonly actor: Actor
  readonly payload: unknown
}

/** The columns that the type `EventRow` contains. */
export const EVENT_COLUMNS = 'id, org_id, timestamp, category, event_type, actor, payload'

/**
 * Inserts audit events, and returns their ids in the same order. An id is higher than asked for if an earlier event has that already. A
 * database trigger refuses later changes, and deletions by anything but `prune`.
 */
export async function insertMany(q: Queryable, events: readonly NewEvent[]): Promise<readonly string[]> {
  const rows = events.map((event) => ({ ...event, category: EVENT_TYPES[event.event_type].category }))
  const { rows: inserted } = await q.query<{ readonly id: string }>({
    name: 'events.insertMany',
    text: `INSERT INTO events (id, org_id, timestamp, category, event_type, sandbox_id, actor, payload)
           SELECT ${orderedIdOfAny({ id: 'r.id', org: 'r.org_id', sandbox: 'r.sandbox_id' })}, org_id, timestamp, category, event_type, sandbox_id,
             actor, payload
           FROM json_to_recordset($1::json) AS r(id uuid, org_id uuid, timestamp timestamptz, category text,
             event_type text, sandbox_id uuid, actor json, payload json) RETURNING id`,
    values: [JSON.stringify(rows)],
  })
  return inserted.map(({ id }) => id)
}

/** One event of an organization, or null. */
export async function find(q: Queryable, org: OrgId, id: EventId): Promise<EventRow | null> {
  const { rows } = await q.query<EventRow>({
    name: 'events.find',
    text: `SELECT ${EVENT_COLUMNS} FROM events WHERE org_id = $1 AND id = $2`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** Deletes events from before an instant, which is at least a day ago. */
export const prune: PruneStep = async (q, { before, after, limit }) => {
  const { rows } = await q.query<StepResult>({
    name: 'events.prune',
    text: 'SELECT count AS walked, last FROM sandyard_prune_events($1, $2, $3)',
    values: [before, after ?? NIL_UUID, limit],
  })
  return rows[0] ?? { walked: 0, last: null }
}
