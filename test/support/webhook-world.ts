import { createWebhook, type NewWebhook, type WebhookWithSecret } from '../../src/control/webhooks/webhooks.ts'
import { recordEvent } from '../../src/control/events/record-event.ts'
import { SYSTEM_ACTOR } from '../../src/domain/orgs/caller.ts'
import type { RetrySchedule } from '../../src/domain/webhooks/retry-schedule.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { makeUuids } from '../../src/lib/uuid.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { deliverWebhooks, type DeliverDeps } from '../../src/loops/webhooks/deliver-webhooks.ts'
import { makeTestControl, type TestControl } from './control.ts'
import type { WebhookReceiver } from './webhook-receiver.ts'

/** Pauses that a test has time for. */
export const QUICK: RetrySchedule = { firstMs: 30, lastMs: 300, totalMs: 600_000 }

const ANY = { event_types: null, category: null, sandbox_id: null, actor: null, description: '' }

export type WebhookWorld = TestControl & {
  /** Creates a webhook of a receiver, which learns its secret. */
  add(receiver: WebhookReceiver, path: string, input?: Partial<NewWebhook>): Promise<WebhookWithSecret>
  /** Records an event of a sandbox, or of the organization for null. */
  record(sandbox_id: string | null, name: string): Promise<string>
  /** Begins to deliver. Returns the function that ends it, after what is under way. */
  deliver(options?: Partial<Pick<DeliverDeps, 'clock' | 'schedule' | 'observer' | 'fence'>>): () => Promise<void>
}

/** A control plane whose deliveries begin and end as a test says. */
export async function makeWebhookWorld(options: Parameters<typeof makeTestControl>[0] = {}): Promise<WebhookWorld> {
  const control = await makeTestControl(options)
  const { deps, caller } = control
  const { org_id } = caller
  const running = new Set<() => Promise<void>>()
  const uuids = makeUuids(systemClock, systemRandom)
  return {
    ...control,
    async add(receiver, path, input = {}) {
      const made = await createWebhook(deps, caller, { ...ANY, url: receiver.url + path, ...input })
      receiver.secrets.set(path, [...(receiver.secrets.get(path) ?? []), made.secret])
      return made
    },
    async record(sandbox_id, name) {
      const event =
        sandbox_id === null
          ? ({ event_type: 'org_created', payload: { name, slug: 'a' } } as const)
          : ({ event_type: 'sandbox_renamed', payload: { sandbox_id, name, slug: 'a', from: {} } } as const)
      const { id } = await deps.db.transaction(org_id, (tx) =>
        recordEvent({ clock: systemClock, uuids }, tx, { org_id, actor: SYSTEM_ACTOR, ...event }),
      )
      return id
    },
    deliver(how = {}) {
      const ending = new AbortController()
      const fence = (): Promise<void> => Promise.resolve()
      const done = deliverWebhooks({ ...deps, fence, schedule: QUICK, ...how }, ending.signal)
      const end = async (): Promise<void> => {
        ending.abort(new Error('the test ends it'))
        running.delete(end)
        await done
      }
      running.add(end)
      return end
    },
    async close() {
      await Promise.all([...running].map((end) => end()))
      await control.close()
    },
  }
}
