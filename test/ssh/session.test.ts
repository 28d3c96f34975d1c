import assert from 'node:assert/strict'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import type ssh2 from 'ssh2'
import { serveClient } from '../support/channel-clients.ts'
import { makeLocalGuest } from '../support/local-guest.ts'
import { startSshLoopback } from '../support/ssh-loopback.ts'
import { waitUntilUnchanged } from '../support/wait.ts'

// Sessions of clients that break the rules of SSH, over a real connection.

test('a session runs the first command that it gets, and no second one', async (t) => {
  const guest = makeLocalGuest()
  const commands: unknown[] = []
  const served = await serveClient({
    ...guest,
    exec(request) {
      commands.push(request.args.at(-1))
      return guest.exec({ ...request, env: ['HOME=/', ...request.env] }) // without the start-up files of this machine's user
    },
  })
  const { connection } = await startSshLoopback(t, served.client)
  t.after(async () => {
    served.client.close()
    await served.over
  })
  const exec = (command: string): Promise<ssh2.ClientChannel> =>
    new Promise((resolve, reject) => {
      connection.exec(command, (error, opened) => {
        if (error === undefined) resolve(opened)
        else reject(error)
      })
    })
  const channel = await exec('cat')
  const { _client: client, outgoing } = channel as unknown as {
    readonly _client: { readonly _protocol: Record<'exec' | 'subsystem', (id: number, name: string) => void> }
    readonly outgoing: { readonly id: number }
  } // the library's client asks for no second command
  client._protocol.exec(outgoing.id, 'echo second')
  client._protocol.subsystem(outgoing.id, 'sftp')
  assert.equal(await text(await exec('echo other')), 'other\n')
  channel.end('first')
  assert.equal(await text(channel), 'first')
  assert.deepEqual(commands, ['cat', 'echo other'])
})

test('the server stops reading from a client that takes no replies', async (t) => {
  const served = await serveClient(makeLocalGuest())
  const { connection, client, server } = await startSshLoopback(t, served.client)
  t.after(async () => {
    served.client.close()
    await served.over
  })
  const { _protocol: protocol } = connection as unknown as { readonly _protocol: { ping(): void } }
  client.pause()
  const before = server.bytesRead
  for (let n = 1; n <= 250_000; n++) {
    protocol.ping() // the server answers each
    if (n % 1000 === 0) await setImmediate()
  }
  await waitUntilUnchanged(() => server.bytesRead - before)
  assert.ok(server.writableLength <= 3 * 1024 * 1024, String(server.writableLength))
})
