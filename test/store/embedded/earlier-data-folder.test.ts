import assert from 'node:assert/strict'
import { cp, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { startEmbedded, type EmbeddedServer } from '../../../src/store/embedded/embedded-server.ts'
import { migrate } from '../../../src/store/postgres/migrate.ts'
import { prepareSchema } from '../../../src/store/postgres/prepare-schema.ts'
import { onServer } from '../../support/postgres.ts'

const MIGRATIONS = join(import.meta.dirname, '..', '..', '..', 'migrations')
const log = makeLog('silent')

test('a data folder of an earlier release, whose only role owned the tables and served, gets a role for the server and keeps its rows', async () => {
  const home = await mkdtemp('/tmp/sandyard-earlier-')
  const earlier = await startEarlierRelease(home)
  const server = await start(home)
  try {
    assert.equal(server.ownerConnectionString, earlier.ownerConnectionString) // the earlier release can still open the folder
    const urls = { server: server.connectionString, owner: server.ownerConnectionString }
    assert.deepEqual(await prepareSchema(urls, MIGRATIONS, log), { name: 'sandyard_server', isOwner: false })
    await onServer(server.connectionString, async (serving) => {
      await serving.query(`SELECT set_config('sandyard.org', '*', false)`)
      assert.deepEqual((await serving.query('SELECT slug FROM orgs')).rows, [{ slug: 'kept' }])
      await assert.rejects(serving.query('ALTER TABLE orgs DISABLE ROW LEVEL SECURITY'), { code: '42501' })
      await assert.rejects(serving.query('CREATE TEMPORARY TABLE mine (id int)'), { code: '42501' })
    })
  } finally {
    await server.stop()
    await rm(home, { recursive: true })
  }
})

/** Creates a data folder as the release before the role of the server left it. */
async function startEarlierRelease(home: string): Promise<EmbeddedServer> {
  const server = await start(home)
  const migrations = join(home, 'migrations')
  await mkdir(migrations)
  const all = (await readdir(MIGRATIONS)).sort()
  const files = all.slice(
    0,
    all.findIndex((file) => file.endsWith('_server_role.sql')),
  )
  for (const file of files) await cp(join(MIGRATIONS, file), join(migrations, file))
  await migrate(server.ownerConnectionString, migrations, log)
  await onServer(server.ownerConnectionString, async (owner) => {
    await owner.query(`SELECT set_config('sandyard.org', '*', false)`)
    await owner.query(
      `INSERT INTO orgs (id, name, slug, plan, created_at, updated_at) VALUES (gen_random_uuid(), 'kept', 'kept', 'unlimited', now(), now())`,
    )
  })
  await onServer(server.adminConnectionString, (admin) =>
    admin.query(`GRANT CONNECT, TEMPORARY ON DATABASE sandyard TO PUBLIC; REVOKE ALL ON DATABASE sandyard FROM sandyard_server;
                 DROP ROLE sandyard_server`),
  )
  await server.stop()
  const path = join(home, 'postgres-passwords.json')
  const { server: _, ...passwords } = JSON.parse(await readFile(path, 'utf8'))
  await writeFile(path, JSON.stringify(passwords))
  return server
}

function start(dataDir: string): Promise<EmbeddedServer> {
  return startEmbedded({ dataDir, log, clock: systemClock, random: systemRandom })
}
