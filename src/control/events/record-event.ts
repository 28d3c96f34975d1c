import type { OrgActor } from '../../domain/orgs/caller.ts'
import type { TypedEvent } from '../../domain/events/event-types.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as events from '../../store/events/events.ts'
import type { BaseDeps } from '../deps.ts'

/** Records an audit event in the transaction of the change, and returns it. The event's sandbox, if any, is the one in its payload. */
export async function recordEvent(
  deps: Pick<BaseDeps, 'clock' | 'uuids'>,
  tx: Queryable,
  event: OrgActor & TypedEvent,
): Promise<events.NewEvent> {
  const { id, timestamp } = { id: deps.uuids.next(), timestamp: deps.clock.now() }
  const sandbox_id = 'sandbox_id' in event.payload ? event.payload.sandbox_id : null
  const recorded = { ...event, id, timestamp, sandbox_id }
  const [inserted = id] = await events.insertMany(tx, [recorded])
  return { ...recorded, id: inserted }
}
