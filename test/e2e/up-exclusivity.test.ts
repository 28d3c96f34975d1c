import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { makeTestDatabase } from '../support/postgres.ts'
import { makeProgram } from '../support/program.ts'

// The worker inside `up` does not fence itself. If another process used the same database, that process could call the
// worker lost and run its sandboxes a second time.

const SECRET = Buffer.alloc(32, 7).toString('base64')

test('neither `up` nor `serve` starts on a database that the other uses, and each says what to use instead', async () => {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-one-up-'))
  const database = await makeTestDatabase()
  const settings = (name: string) => ({
    DATABASE_URL: database.url,
    SANDYARD_DATA_DIR: join(root, name),
    SANDYARD_PORT: '0',
    SANDYARD_DRIVER: 'simulated',
    SANDYARD_SECRET_KEY: SECRET,
  })
  const serve = makeProgram(['serve'], settings('serve'), /ready on/)
  const up = makeProgram(['up'], settings('up'), /ready on/)
  const rule = /needs a database of its own/
  try {
    await serve.start()
    await assert.rejects(up.start(), rule)
    assert.match(up.output(), /1 other server processes use this database/)
    await serve.stop()
    await up.start()
    await assert.rejects(serve.start(), rule)
    assert.match(serve.output(), /`sandyard up` uses this database/)
  } finally {
    await up.stop()
    await serve.stop()
    await database.close()
    rmSync(root, { recursive: true, force: true })
  }
})
