import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { test } from 'node:test'
import { openConnection } from '../../../src/store/postgres/connection.ts'
import { isUnavailable } from '../../../src/store/postgres/database-errors.ts'

/** A message of the server: its type, its length, and its content. */
function message(type: string, content: Buffer): Buffer {
  const head = Buffer.alloc(5)
  head.write(type)
  head.writeInt32BE(4 + content.length, 1)
  return Buffer.concat([head, content])
}

const GREETING = Buffer.concat([message('R', Buffer.alloc(4)), message('Z', Buffer.from('I'))])
const GOODBYE = message('E', Buffer.from('SFATAL\0C57P01\0Mterminating connection\0\0'))

test('a connection that the server ends together with its greeting is not opened', async () => {
  const server = createServer((socket) => {
    socket.once('data', () => socket.end(Buffer.concat([GREETING, GOODBYE])))
    socket.on('error', () => undefined)
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  assert.ok(address !== null && typeof address === 'object')
  const connectionString = `postgresql://user@127.0.0.1:${String(address.port)}/database`
  try {
    await assert.rejects(
      openConnection({ connectionString, application_name: 'test' }, () => undefined),
      isUnavailable,
    )
  } finally {
    server.close()
  }
})
