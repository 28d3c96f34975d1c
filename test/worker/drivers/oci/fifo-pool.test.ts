import assert from 'node:assert/strict'
import { closeSync, openSync, writeSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { makeLog } from '../../../../src/lib/log.ts'
import { makeFifoPool } from '../../../../src/worker/drivers/oci/exec/fifo-pool.ts'
import { localHostCommands } from '../../../../src/worker/processes/system-calls.ts'

test('output that nobody reads stays in its pipe, also if it comes in single bytes', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'sandyard-fifos-'))
  t.after(() => rm(folder, { recursive: true }))
  const pool = makeFifoPool(folder, { commands: localHostCommands, log: makeLog('silent') })
  const pipe = await pool.takePipe('from-child')
  const { socket } = pipe
  const child = openSync(pipe.path, 'w')
  pipe.closeChildEnd()
  socket.on('readable', () => undefined)
  for (let n = 0; n < 2_000; n++) {
    writeSync(child, String(n % 10))
    await setImmediate()
  }
  assert.ok(socket.readableLength < 100, `${String(socket.readableLength)} bytes were read`)
  socket.removeAllListeners('readable')
  closeSync(child)
  assert.equal(await text(socket), '0123456789'.repeat(200))
})
