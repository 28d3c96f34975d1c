import type { Actor } from '../../domain/orgs/caller.ts'
import type { EventId, OrgId } from '../../domain/ids.ts'
import { EVENT_TYPES, type TypedEvent } from '../../domain/events/event-types.ts'
import type { Queryable } from '../postgres/database.ts'
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

/** Inserts audit events. A database trigger refuses later changes, and deletions by anything but `prune`. */
export async function insertMany(q: Queryable, events: readonly NewEvent[]): Promise<void> {
  const rows = events.map((event) => ({ ...event, category: EVENT_TYPES[event.event_type].category }))
  await q.query({
    name: 'events.insertMany',
    text: `INSERT INTO events (id, org_id, timestamp, category, event_type, sandbox_id, actor, payload)
           SELECT id, org_id, timestamp, category, event_type, sandbox_id, actor, payload
           FROM json_to_recordset($1::json) AS r(id uuid, org_id uuid, timestamp timestamptz, category text,
             event_type text, sandbox_id uuid, actor json, payload json)`,
    values: [JSON.stringify(rows)],
  })
}

export type EventFilter = {
  readonly event_type: string | null
  /** The time range of the events. Both ends are inclusive. Times are compared as stored. */
  readonly since: Date | null
  readonly until: Date | null
  /** The ids that events of the time range can have. PostgreSQL needs this range to use the index. */
  readonly fromId: string | null
  readonly toId: string | null
  /** Only events whose ids are before this one. */
  readonly before: string | null
}

/** A page of an organization's events, newest first. */
export async function page(q: Queryable, org: OrgId, filter: EventFilter, limit: number): Promise<readonly EventRow[]> {
  const conditions = ['org_id = $1']
  const values: unknown[] = [org]
  const add = (condition: (parameter: string) => string, value: unknown): void => {
    if (value === null) return
    values.push(value)
    conditions.push(condition(`$${String(values.length)}`))
  }
  add((parameter) => `event_type = ${parameter}`, filter.event_type)
  add((parameter) => `timestamp >= ${parameter}`, filter.since)
  add((parameter) => `timestamp <= ${parameter}`, filter.until)
  add((parameter) => `id >= ${parameter}`, filter.fromId)
  add((parameter) => `id < ${parameter}`, filter.toId)
  add((parameter) => `id < ${parameter}`, filter.before)
  values.push(limit)
  const { rows } = await q.query<EventRow>({
    text: `SELECT id, org_id, timestamp, category, event_type, actor, payload FROM events
           WHERE ${conditions.join(' AND ')} ORDER BY id DESC LIMIT $${String(values.length)}`,
    values,
  })
  return rows
}

/** One event of an organization, or null. */
export async function find(q: Queryable, org: OrgId, id: EventId): Promise<EventRow | null> {
  const { rows } = await q.query<EventRow>({
    name: 'events.find',
    text: `SELECT id, org_id, timestamp, category, event_type, actor, payload FROM events WHERE org_id = $1 AND id = $2`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** Deletes events from before an instant, which is at least a day ago. */
export const prune: PruneStep = async (q, { before, after, limit }) => {
  const { rows } = await q.query<StepResult>({
    name: 'events.prune',
    text: 'SELECT count AS walked, last FROM sandyard_prune_events($1, $2, $3)',
    values: [before, after ?? '00000000-0000-0000-0000-000000000000', limit],
  })
  return rows[0] ?? { walked: 0, last: null }
}
