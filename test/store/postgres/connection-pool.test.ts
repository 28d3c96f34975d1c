import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeLog } from '../../../src/lib/log.ts'
import { makeConnectionPool } from '../../../src/store/postgres/connection-pool.ts'
import { makeEmptyDatabase } from '../../support/postgres.ts'

test('a caller gets a connection that becomes free in a moment, and another one is opened for it only later', async (t) => {
  const home = await makeEmptyDatabase()
  const pool = makeConnectionPool({
    name: 'test',
    connection: { connectionString: home.url, application_name: 'sandyard' },
    max: 4,
    log: makeLog('silent'),
    onServerFull: () => undefined,
  })
  t.after(async () => {
    await pool.close()
    await home.close()
  })
  const first = await pool.acquire()
  const second = pool.acquire()
  assert.equal(pool.use.connecting, 0)
  pool.release(first)
  assert.equal(await second, first)
  const third = await pool.acquire() // the only connection stays in use
  assert.notEqual(third, first)
  assert.deepEqual([pool.use.inUse, pool.use.idle], [2, 0])
  pool.release(first)
  pool.release(third)
})
