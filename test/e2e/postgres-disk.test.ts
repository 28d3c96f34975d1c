import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { call, mustCall } from '../support/api.ts'
import { startExternalPostgres, type ExternalPostgres } from '../support/external-postgres.ts'
import type { FaultLoad } from '../support/fault-load.ts'
import { noteSurvival, assertSurvivesFault } from '../support/fault-invariants.ts'
import { onServer } from '../support/postgres.ts'
import { readPostmasterPid, startServer, type RealServer } from '../support/server.ts'
import { superuserUrl } from '../support/server-database.ts'
import { mountSmallDisk, whyNoSmallDisk, type SmallDisk } from '../support/small-disk.ts'
import { waitUntil } from '../support/wait.ts'

// The disk of PostgreSQL becomes full: there is no space for tables first, and then none for the write-ahead log (WAL).
// Later there is free space again.

const DISK_MIB = 320
/** Makes PostgreSQL preallocate few WAL segments, so that it soon needs a new one. */
const SMALL_LOG = { min_wal_size: '32MB', max_wal_size: '48MB' }
const FULL_MS = 10_000

describe('a full disk', { skip: whyNoSmallDisk() }, () => {
  const opened: (() => void | Promise<void>)[] = []
  afterEach(async () => {
    for (const close of opened.splice(0).reverse()) await close()
  })

  test('an external PostgreSQL: writes are refused while its disk is full, even if it dies of that; everything recovers when there is space', async () => {
    const disk = openDisk()
    const external = await startExternalPostgres({ dataDir: disk.folder, settings: SMALL_LOG })
    opened.push(() => external.close())
    const server = await startServer({ ...SIMULATED, DATABASE_URL: external.ownerUrl })
    opened.push(() => server.close())
    const tables = await assertSurvivesFault(server, external.adminUrl, async (load) => {
      await whileFull(disk, load)
    })
    noteSurvival('the disk of an external PostgreSQL is full for 10 s', [tables], 1)
    const log = await assertSurvivesFault(server, external.adminUrl, async (load) => {
      await whileFull(disk, load, () => exhaustLog(external.adminUrl))
      await startAgain(external)
    })
    noteSurvival('an external PostgreSQL ends because the disk of its log is full', [log], 1)
  })

  test('the embedded PostgreSQL: writes are refused while its disk is full, even if it dies of that; everything recovers when there is space', async () => {
    const disk = openDisk()
    const server = await startOn(disk)
    opened.push(() => server.close())
    const adminUrl = superuserUrl(server)
    for (const [name, value] of Object.entries(SMALL_LOG))
      await onServer(adminUrl, (admin) => admin.query(`ALTER SYSTEM SET ${name} = '${value}'`))
    const survival = await assertSurvivesFault(server, adminUrl, async (load) => {
      await whileFull(disk, load, () => exhaustLog(adminUrl))
      await waitUntil(() => readPostmasterPid(server.dataDir) !== null, 30_000)
    })
    assert.match(server.output(), /PostgreSQL ended and is restarted|terminating connection because of crash/)
    noteSurvival('the disk of the embedded PostgreSQL is full, of its log as well', [survival], 1)
    await server.stop()
    disk.fill()
    await assert.rejects(
      server.start(),
      /the file system with the data folder is full \(0 MiB are free\): delete other files on it/,
    )
    disk.free()
    await server.start()
  })

  test('the embedded PostgreSQL with a ballast: sandboxes can be deleted although the disk is full', async () => {
    const disk = openDisk()
    const server = await startOn(disk, { ...SIMULATED, SANDYARD_BALLAST_MIB: '64' })
    opened.push(() => server.close())
    const ballast = join(server.dataDir, 'database', 'ballast')
    await waitUntil(() => existsSync(ballast), 30_000)
    const sandboxes = []
    for (let n = 0; n < 20; n++)
      sandboxes.push(await mustCall(server, 'create_sandbox', { body: { image: 'registry.example/box:1' } }))
    disk.fill()
    await waitUntil(
      () => !existsSync(ballast),
      30_000,
      () => 'the ballast is still there',
    )
    await waitUntil(async () => (await readiness(server)).includes('the disk of the database is full'), 30_000)
    for (const { id } of sandboxes) {
      await waitUntil(
        async () => (await call(server, 'delete_sandbox', { params: { sandbox_id: id } })).status !== 503,
        60_000,
      )
      assert.equal((await call(server, 'get_sandbox', { params: { sandbox_id: id } })).status, 404)
    }
    assert.match(server.output(), /freed the ballast/)
    disk.free()
    await waitUntil(
      () => existsSync(ballast),
      30_000,
      () => 'the ballast was not made again',
    )
    await waitUntil(async () => (await readiness(server)).startsWith('200 '), 30_000)
  })

  function openDisk(): SmallDisk {
    const disk = mountSmallDisk(DISK_MIB)
    opened.push(() => {
      disk.remove()
    })
    return disk
  }
})

const SIMULATED = { SANDYARD_DRIVER: 'simulated', SANDYARD_LOG_LEVEL: 'warn', SANDYARD_BALLAST_MIB: '0' }

async function readiness(server: RealServer): Promise<string> {
  const reply = await fetch(`${server.url}/readyz`)
  return `${String(reply.status)} ${await reply.text()}`
}

/** Fills the disk, runs `then`, waits until requests are refused, and frees the space again. */
async function whileFull(
  disk: SmallDisk,
  load: FaultLoad,
  then: () => Promise<void> = () => Promise.resolve(),
): Promise<void> {
  try {
    assert.ok(disk.fill() > 0)
    const before = load.answers.get(503) ?? 0
    await then()
    await waitUntil(() => {
      disk.fill() // fills the space that PostgreSQL has freed in the meantime
      return load.hasFailed || (load.answers.get(503) ?? 0) > before + 10
    }, 60_000)
    await systemClock.sleep(FULL_MS)
  } finally {
    disk.free()
  }
}

/** Writes WAL until PostgreSQL needs a new segment and dies, because the disk has no space for one. */
async function exhaustLog(adminUrl: string): Promise<void> {
  for (let isUp = true; isUp;) {
    try {
      await onServer(adminUrl, async (admin) => {
        admin.on('error', (error) => void error) // PostgreSQL is expected to die
        await admin.query(`SELECT pg_logical_emit_message(true, 'fill', repeat('x', 1000000)), pg_switch_wal()`)
      })
    } catch {
      isUp = false
    }
  }
}

/** Restarts PostgreSQL, or starts it if it has died, as its operator's service manager would. */
async function startAgain(external: ExternalPostgres): Promise<void> {
  await external.end('SIGQUIT')
  await external.start()
}

/** Starts a server whose data folder, with its database, is on this disk. */
async function startOn(disk: SmallDisk, env: Readonly<Record<string, string>> = SIMULATED): Promise<RealServer> {
  const before = process.env['TMPDIR']
  process.env['TMPDIR'] = disk.folder
  try {
    return await startServer(env)
  } finally {
    if (before === undefined) delete process.env['TMPDIR']
    else process.env['TMPDIR'] = before
  }
}
