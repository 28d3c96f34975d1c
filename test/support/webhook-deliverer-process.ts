/** Delivers to webhooks until it is killed: with the database in argv, the sealing key as hex, and quick retries. */
import { systemClock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { makeSeal } from '../../src/lib/seal.ts'
import { makeUuids } from '../../src/lib/uuid.ts'
import { makeLeaderElection } from '../../src/loops/leader-election.ts'
import { leadWebhooks, WEBHOOKS_LEAD } from '../../src/loops/webhooks/lead-webhooks.ts'
import { openDatabase } from '../../src/store/postgres/database.ts'
import { openNotifications } from '../../src/store/postgres/notifications.ts'
import { makeTestWebhooks } from './webhooks.ts'

const [connectionString = '', key = ''] = process.argv.slice(2)
const log = makeLog('error')
const limits = { tenantPoolSize: 1, systemPoolSize: 4, statementTimeoutMs: 20_000 }
const db = await openDatabase({ connectionString, ...limits, log })
const notifications = await openNotifications({ connectionString, clock: systemClock, log, windowMs: 5 })
const uuids = makeUuids(systemClock, systemRandom)
const base = { db, clock: systemClock, log, random: systemRandom, uuids, notifications }
const seal = makeSeal(Buffer.from(key, 'hex'), systemRandom)
const schedule = { firstMs: 30, lastMs: 300, totalMs: 600_000 }
const elect = makeLeaderElection({ ...base, holder: uuids.next(), isAlone: true }, WEBHOOKS_LEAD)
process.stdin.resume()
process.stdin.once('end', () => process.exit()) // its parent has ended
await leadWebhooks({ ...base, seal, webhooks: makeTestWebhooks(), schedule }, elect, new AbortController().signal)
