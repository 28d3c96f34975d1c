import assert from 'node:assert/strict'
import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { makeBackup } from '../../../src/cli/backup/make-backup.ts'
import { chooseBackup, openRepository } from '../../../src/cli/backup/open-repository.ts'
import { restoreBackup } from '../../../src/cli/backup/restore-backup.ts'
import { openStore } from '../../../src/cli/server/open-store.ts'
import { readConfig } from '../../../src/config.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { startEmbedded } from '../../../src/store/embedded/embedded-server.ts'
import { prepareSchema } from '../../../src/store/postgres/prepare-schema.ts'
import { onServer } from '../../support/postgres.ts'

const MIGRATIONS = join(import.meta.dirname, '../../../migrations')
const log = makeLog('silent')
const clock = { log, clock: systemClock, random: systemRandom }
/** Everything that the text format must escape. */
const NAME = 'tab\t newline\n backslash \\ \\N quote \' " ünïcode \u{1f600}'

/** The folder of the npm package with PostgreSQL 17. `npm test` fetches it. */
const POSTGRES_17 = process.env['SANDYARD_TEST_POSTGRES_17']
const skip =
  POSTGRES_17 === undefined && 'SANDYARD_TEST_POSTGRES_17 names no npm package with PostgreSQL 17; `npm test` sets it'

test('a backup moves the data of an embedded PostgreSQL 17 to 18, whose error names that way', { skip }, async () => {
  const root = await mkdtemp(join(tmpdir(), 'sandyard-upgrade-'))
  await chmod(root, 0o711)
  try {
    const dataDir = join(root, 'old')
    await mkdir(dataDir)
    await chmod(dataDir, 0o711)
    const seventeen = await startEmbedded({
      ...clock,
      dataDir: join(dataDir, 'database'),
      ...(POSTGRES_17 === undefined ? {} : { npmPackage: join(POSTGRES_17, 'dist', 'index.js') }),
    })
    try {
      const urls = { server: seventeen.connectionString, owner: seventeen.ownerConnectionString }
      await prepareSchema(urls, MIGRATIONS, log)
      await onServer(urls.owner, async (owner) => {
        await owner.query(`SELECT set_config('sandyard.org', '*', false)`)
        assert.match((await owner.query<{ v: string }>('SELECT version() AS v')).rows[0]?.v ?? '', /^PostgreSQL 17/)
        await owner.query(
          `INSERT INTO orgs (id, name, slug, plan, created_at, updated_at) VALUES (gen_random_uuid(), $1, 'kept', 'unlimited', now(), now())`,
          [NAME],
        )
      })
      await writeFile(join(dataDir, 'database-owner.url'), urls.owner) // as a server of that release does
      const config = readConfig({ SANDYARD_DATA_DIR: dataDir }, {})
      const target = join(root, 'backups')
      await makeBackup({
        config,
        target,
        withImages: true,
        log,
        onProgress: () => undefined,
        signal: new AbortController().signal,
      })
    } finally {
      await seventeen.stop()
    }
    await assert.rejects(
      startEmbedded({ ...clock, dataDir: join(dataDir, 'database') }),
      /was created by PostgreSQL 17, and this release comes with 18: with the release that made it, run `sandyard backup/,
    )
    const repository = await openRepository(join(root, 'backups'))
    const { manifest } = await chooseBackup(repository, null)
    const config = readConfig({ SANDYARD_DATA_DIR: join(root, 'new') }, {})
    await restoreBackup({ config, repository, manifest, log, onProgress: () => undefined })
    await using store = await openStore(config, log)
    const rows = await store.db.asSystem((q) => q.query({ text: 'SELECT name, version() AS version FROM orgs' }))
    assert.equal(rows.rows[0]?.['name'], NAME)
    assert.match(String(rows.rows[0]?.['version']), /^PostgreSQL 18/)
  } finally {
    await rm(root, { recursive: true, force: true })
  }
})
