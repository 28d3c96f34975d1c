import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { createFirstKey } from '../../src/cli/server/first-key.ts'
import { hasOrg } from '../../src/control/orgs/create-first-org.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { makeUuids } from '../../src/lib/uuid.ts'
import { lockDataFolder } from '../../src/store/embedded/data-lock.ts'
import { openDatabase } from '../../src/store/postgres/database.ts'
import { asCaller, makeHttpWorld } from '../support/http-world.ts'
import { makeTestDatabase } from '../support/postgres.ts'
import { attack } from '../support/security-attack.ts'

let folder: string
before(() => {
  folder = mkdtempSync(join(tmpdir(), 'sandyard-secrets-'))
})
after(() => {
  rmSync(folder, { recursive: true })
})

attack(
  'reads the metrics of an installation',
  { target: 'control-plane', attacker: 'a client without the metrics key', finding: 14 },
  async () => {
    const key = 'a-key-of-the-operator'
    const guarded = makeHttpWorld({ server: { metricsKey: key } })
    const open = makeHttpWorld()
    const stranger = { remoteAddress: '192.0.2.7' }
    const refused = [
      await guarded.inject({ url: '/metrics' }),
      await guarded.inject({ url: '/metrics', headers: { authorization: 'Bearer another-key-entirely' } }),
      await guarded.inject({ url: '/metrics', headers: asCaller }),
      await open.inject({ url: '/metrics', ...stranger }),
      await open.inject({ url: '/metrics', headers: { 'x-forwarded-for': '192.0.2.7' } }),
      await open.inject({ url: '/metrics', headers: { forwarded: 'for=192.0.2.7' } }),
    ]
    assert.deepEqual(
      refused.map(({ statusCode }) => statusCode),
      refused.map(() => 401),
    )
    for (const { body } of refused) assert.doesNotMatch(body, /# HELP/)
    const scraper = { authorization: `Bearer ${key}` }
    assert.equal((await guarded.inject({ url: '/metrics', headers: scraper, ...stranger })).statusCode, 200)
    assert.equal((await open.inject({ url: '/metrics' })).statusCode, 200)
    await Promise.all([guarded.close(), open.close()])
    return { tries: refused.length, outcome: 'each was answered 401 without a metric' }
  },
)

attack(
  'opens the lock of the data folder',
  { target: 'host', attacker: 'a local account of the host', finding: 14 },
  () => {
    using _lock = lockDataFolder(folder)
    const modes = ['lock', 'lock.pid'].map((name) => statSync(join(folder, name)).mode & 0o777)
    assert.deepEqual(modes, [0o600, 0o600])
    return Promise.resolve({ tries: 2, outcome: 'both files have mode 0600' })
  },
)

test('the first key is written to a file that only its owner can read, and an existing file stops the start', async () => {
  const path = join(folder, 'first-key')
  await withEmptyDatabase(async (deps) => {
    const first = await createFirstKey(deps, { apiKey: null, firstKeyFile: path })
    assert.deepEqual(first, { kind: 'file', path })
    assert.match(readFileSync(path, 'utf8'), /^msb_\w+\n$/)
    assert.equal(statSync(path).mode & 0o777, 0o600)
    assert.deepEqual(await createFirstKey(deps, { apiKey: null, firstKeyFile: path }), { kind: 'existing' })
  })
  await withEmptyDatabase(async (deps) => {
    const again = createFirstKey(deps, { apiKey: null, firstKeyFile: path })
    await assert.rejects(again, /SANDYARD_FIRST_KEY_FILE.*name a file that doesn't exist/)
    assert.equal(await hasOrg(deps), false)
  })
})

async function withEmptyDatabase(use: (deps: Parameters<typeof createFirstKey>[0]) => Promise<void>): Promise<void> {
  const database = await makeTestDatabase()
  const db = await openDatabase({
    connectionString: database.url,
    tenantPoolSize: 2,
    systemPoolSize: 2,
    statementTimeoutMs: 20_000,
    log: makeLog('silent'),
  })
  try {
    await use({ db, clock: systemClock, random: systemRandom, uuids: makeUuids(systemClock, systemRandom) })
  } finally {
    await db.close()
    await database.close()
  }
}
