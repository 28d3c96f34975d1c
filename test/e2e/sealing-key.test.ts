import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { makeTestDatabase } from '../support/postgres.ts'
import { makeProgram, runProgram } from '../support/program.ts'

const SECRETS = [1, 2].map((byte) => Buffer.alloc(32, byte).toString('base64'))

test('another sealing key is announced while nothing of clients is sealed, and refused once a webhook has a secret', async () => {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-sealing-key-'))
  const database = await makeTestDatabase()
  const [before = '', after = ''] = SECRETS
  const settings = (key: string) => ({
    DATABASE_URL: database.url,
    SANDYARD_DATA_DIR: root,
    SANDYARD_PORT: '0',
    SANDYARD_SSH_PORT: 'off',
    SANDYARD_SECRET_KEY: key,
  })
  const serve = (key: string) => makeProgram(['serve'], settings(key), /ready on/)
  const [first, second, third] = [serve(before), serve(after), serve(before)]
  try {
    await first.start()
    await first.stop()
    assert.doesNotMatch(first.output(), /the sealing key/)
    await second.start()
    await second.stop()
    assert.match(second.output(), /WARNING: the sealing key is another one than at the last start/)
    const made = await runProgram(['webhook', 'create', 'https://hooks.example.org/'], settings(after))
    assert.equal(made.code, 0, made.output)
    await assert.rejects(third.start())
    assert.match(third.output(), /another sealing key is in use on this database\. Set SANDYARD_SECRET_KEY/)
    await second.start()
  } finally {
    for (const program of [first, second, third]) await program.stop()
    await database.close()
    rmSync(root, { recursive: true, force: true })
  }
})
