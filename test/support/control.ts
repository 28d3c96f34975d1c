import type { ControlDeps } from '../../src/control/make-deps.ts'
import { makeChannelLimit, type ChannelLimits } from '../../src/control/requests/concurrency-limit.ts'
import { createFirstOrg } from '../../src/control/orgs/create-first-org.ts'
import { authenticate } from '../../src/control/orgs/authenticate.ts'
import { makeLogStreamLimit, type LogStreamLimits } from '../../src/control/requests/concurrency-limit.ts'
import { makeControlDeps } from '../../src/control/make-deps.ts'
import { makeAdmitInBatch } from '../../src/control/sandboxes/placement/admit-in-batch.ts'
import type { Caller } from '../../src/domain/orgs/caller.ts'
import { systemClock, type Clock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { makeSeal } from '../../src/lib/seal.ts'
import { makeSemaphore } from '../../src/lib/turns/semaphore.ts'
import { makeUuids } from '../../src/lib/uuid.ts'
import { openDatabase } from '../../src/store/postgres/database.ts'
import { openNotifications } from '../../src/store/postgres/notifications.ts'
import { makeTestDatabase, onServer } from './postgres.ts'
import { makeTestWebhooks } from './webhooks.ts'

/** The dependencies of a control plane on a database of its own, with its first organization. */
export type TestControl = {
  readonly deps: ControlDeps
  readonly caller: Caller
  readonly databaseUrl: string
  /** Runs a statement as the owner of the tables, who may do more than the role of `databaseUrl`. Sees all organizations. */
  asOwner(text: string, values?: readonly unknown[]): Promise<void>
  close(): Promise<void>
}

export async function makeTestControl(
  options: {
    readonly clock?: Clock
    readonly waitCapacity?: number
    readonly logStreamLimits?: LogStreamLimits
    readonly openStream?: ControlDeps['openStream']
    readonly dialChannel?: ControlDeps['dialChannel']
    readonly channelLimits?: ChannelLimits
    readonly networkDeny?: readonly string[]
    readonly webhooks?: ControlDeps['webhooks']
    readonly sealingKey?: Buffer
    /** Creates never place their runs, so that a test can watch the placement loop do it. */
    readonly leavesPlacementToLoop?: boolean
  } = {},
): Promise<TestControl> {
  const clock = options.clock ?? systemClock
  const log = makeLog('error')
  const database = await makeTestDatabase()
  const db = await openDatabase({
    connectionString: database.url,
    tenantPoolSize: 8,
    systemPoolSize: 8,
    statementTimeoutMs: 20_000,
    log,
  })
  const notifications = await openNotifications({
    connectionString: database.url,
    clock: systemClock,
    log,
    windowMs: 5,
  })
  const made = makeControlDeps({
    db,
    clock,
    random: systemRandom,
    uuids: makeUuids(clock, systemRandom),
    log,
    seal: makeSeal(options.sealingKey ?? systemRandom.bytes(32), systemRandom),
    notifications,
    waitPermits: makeSemaphore(options.waitCapacity ?? 100),
    logStreamLimit: makeLogStreamLimit(options.logStreamLimits ?? { perOrg: 50, inAll: 100 }),
    openStream: options.openStream ?? (() => Promise.reject(new Error('this test has no workers'))),
    dialChannel: options.dialChannel ?? (() => Promise.reject(new Error('this test has no workers'))),
    channelLimit: makeChannelLimit(options.channelLimits ?? { perSandbox: 256, perOrg: 2048 }),
    webhooks: options.webhooks ?? makeTestWebhooks(),
    settings: {
      stopGraceMs: 500,
      defaultRegistry: 'registry.example',
      maxDiskMib: 65_536,
      placement: 'pack',
      previews: () => ({ scheme: 'http', domain: 'localhost', port: 8080 }),
      networkDeny: () => options.networkDeny ?? [],
    },
  })
  const deps = options.leavesPlacementToLoop === true ? withoutPlacer(made) : made
  const first = await createFirstOrg(deps, null)
  const caller = first === null ? null : await authenticate(deps, first.key)
  if (caller === null) throw new Error('the first organization has no usable key')
  return {
    deps,
    caller,
    databaseUrl: database.url,
    asOwner: (text, values = []) =>
      onServer(database.ownerUrl, async (owner) => {
        await owner.query(`select set_config('sandyard.org', '*', false)`)
        await owner.query(text, [...values])
      }),
    async close() {
      await notifications[Symbol.asyncDispose]()
      await db.close()
      await database.close()
    },
  }
}

function withoutPlacer(deps: ControlDeps): ControlDeps {
  const admissionPlacer = {
    suggest: () => Promise.resolve(new Map()),
    forget: () => undefined,
    noteWaiting: () => undefined,
    noteCounted: () => undefined,
  }
  return { ...deps, admissionPlacer, admitInBatch: makeAdmitInBatch({ ...deps, admissionPlacer }) }
}
