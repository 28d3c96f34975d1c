import { Client } from 'pg'
import { createFirstOrg } from '../../src/control/orgs/create-first-org.ts'
import { authenticate } from '../../src/control/orgs/authenticate.ts'
import { makeChannelLimit } from '../../src/control/requests/concurrency-limit.ts'
import { makeLogStreamLimit } from '../../src/control/requests/concurrency-limit.ts'
import { makeControlDeps } from '../../src/control/make-deps.ts'
import { registerWorker } from '../../src/control/workers/worker-join.ts'
import type { Caller } from '../../src/domain/orgs/caller.ts'
import type { WorkerId } from '../../src/domain/ids.ts'
import { makeLog } from '../../src/lib/log.ts'
import { makeSeal } from '../../src/lib/seal.ts'
import { makeSemaphore } from '../../src/lib/turns/semaphore.ts'
import { makeUuids } from '../../src/lib/uuid.ts'
import { makeTestDatabase } from '../support/postgres.ts'
import { addOrg } from '../support/orgs.ts'
import { makeTestClock } from '../support/test-clock.ts'
import { makeSeededChoices } from './seeded-choices.ts'
import { directDatabase, openSimStore, type SimStore } from './sim-database.ts'
import { makeTestWebhooks } from '../support/webhooks.ts'

/** A database with two organizations and two workers, on which schedules run one after another. */
export type Fixture = {
  readonly store: SimStore
  readonly unlimitedCaller: Caller
  /** A caller whose organization has the limits `LIMITS`. */
  readonly limitedCaller: Caller
  readonly workers: readonly WorkerId[]
  /**
   * Removes the rows that rolled back schedules left in tables and indexes. Without it, PostgreSQL's time for a schedule
   * grew from 24 to 35 ms over 900 schedules; with one call (10 ms) after each 50, it stays (2026-11).
   */
  vacuum(): Promise<void>
  close(): Promise<void>
}

/** The limits of the limited organization: sandboxes, and sandboxes that run at the same time. */
export const LIMITS = { sandboxes: 4, running: 2 }

/**
 * Creates a fixture. Every fixture starts with the same rows, down to the identifiers, so that a seed replays on every
 * fixture.
 */
export async function openFixture(): Promise<Fixture> {
  const database = await makeTestDatabase()
  const store = await openSimStore(database.url)
  const owner = new Client({ connectionString: database.ownerUrl }) // only an owner may vacuum
  await owner.connect()
  await store.begin()
  const { random } = makeSeededChoices(0)
  const clock = makeTestClock(new Date('2026-11-21T11:00:00Z'))
  const refuse = (): Promise<never> => Promise.reject(new Error('no streams in a schedule'))
  const deps = makeControlDeps({
    db: directDatabase(store),
    clock,
    random,
    uuids: makeUuids(clock, random),
    log: makeLog('error'),
    seal: makeSeal(Buffer.alloc(32, 7), random),
    notifications: {
      publish: () => undefined,
      subscribe: () => () => undefined,
      [Symbol.asyncDispose]: () => Promise.resolve(),
    },
    waitPermits: makeSemaphore(1),
    logStreamLimit: makeLogStreamLimit({ perOrg: 1, inAll: 1 }),
    openStream: refuse,
    dialChannel: refuse,
    channelLimit: makeChannelLimit({ perSandbox: 1, perOrg: 1 }),
    webhooks: makeTestWebhooks([]),
    settings: {
      stopGraceMs: 500,
      defaultRegistry: 'registry.example',
      maxDiskMib: 65_536,
      placement: 'pack',
      networkDeny: () => [],
    },
  })
  const first = await createFirstOrg(deps, null)
  const unlimitedCaller = first === null ? null : await authenticate(deps, first.key)
  if (unlimitedCaller === null) throw new Error('the first organization has no usable key')
  const limitedCaller = await addOrg(deps, 'limited')
  await deps.db.asSystem((q) =>
    q.query({
      text: 'UPDATE orgs SET quota_overrides = $2 WHERE id = $1',
      values: [
        limitedCaller.org_id,
        JSON.stringify({ max_sandboxes: LIMITS.sandboxes, max_concurrent_persistent_running: LIMITS.running }),
      ],
    }),
  )
  const workers = [
    await registerWorker(deps, { name: 'w1', credential: 'the-credential-of-worker-1' }),
    await registerWorker(deps, { name: 'w2', credential: 'the-credential-of-worker-2' }),
  ]
  await store.commit()
  return {
    store,
    unlimitedCaller,
    limitedCaller,
    workers,
    async vacuum() {
      await owner.query('VACUUM')
    },
    async close() {
      await store.close()
      await owner.end()
      await database.close()
    },
  }
}
